"""The directories of a worker: caches that stay, temporary files that do not outlive it."""

from __future__ import annotations

import shutil

from framekeeper.profiles.launch import Launch


def make(launch: Launch) -> None:
    """Make them, for this user alone; that of temporary files is made anew. Raises OSError."""
    # What a killed predecessor left in it is of no use to anybody.
    remove_temporary(launch)
    for directory in launch.directories:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)


def remove_temporary(launch: Launch) -> None:
    """Remove what the worker left in its directory of temporary files."""
    shutil.rmtree(launch.environment["TMPDIR"], ignore_errors=True)
