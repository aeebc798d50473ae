"""The doctor: what is wrong with a host, a container, an environment or a checkpoint, before it crashes.

Nothing here imports torch, so that it also works where an engine's image will not start.
"""
