"""The weights check: whether a checkpoint's files hold what their configuration promises.

Standard library only; the values (`--deep`) are read with numpy where it is installed.
"""
