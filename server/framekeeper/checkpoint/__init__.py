"""Diffusers folders: making the small one, checking any."""
