"""API keys: who may call, what for, and how much."""
