"""Compiled code that is kept on disk from one process to the next."""

from __future__ import annotations

import os
from pathlib import Path

#: Inductor's and Triton's, in a launch's cache directory. What a compile does not find there, it writes.
KEPT = ("inductor", "triton")


def files(directory: Path) -> frozenset[str]:
    """Paths of the files in a launch's compile caches; empty where nothing was ever compiled.

    They are looked at while a worker writes them: what goes away meanwhile is left out.
    """
    return frozenset(
        os.path.join(where, name)  # noqa: PTH118  (tens of thousands of them)
        for kept in KEPT
        for where, _, names in os.walk(directory / kept)
        for name in names
    )
