"""What makes the frames: one module a backend."""
