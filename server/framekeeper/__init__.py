"""Framekeeper keeps a Wan2.2 text-to-video service alive."""

__version__ = "0.1.0"
