"""The supervisor, its disposable workers and the backends inside them."""
