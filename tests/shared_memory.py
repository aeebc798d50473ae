"""Shared memory of some processes. Other programs' segments, and other tests', come and go beside them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from pathlib import Path

DIRECTORY = Path("/dev/shm")
#: A file or directory of shared memory that still has its name, in a line of /proc.
SEGMENT = re.compile(r"/dev/shm/([^/\s]+)(?!.*\(deleted\))")


def segments(pids: Iterable[int]) -> set[str]:
    """Names in /dev/shm that these processes have mapped or open now."""
    used: set[str] = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            process = Path(f"/proc/{pid}")
            lines = (process / "maps").read_text().splitlines()
            lines += [str(descriptor.readlink()) for descriptor in (process / "fd").iterdir()]
            used |= {match[1] for line in lines if (match := SEGMENT.search(line))}
    return used


def left(names: Iterable[str]) -> list[str]:
    """Those of these names that are still there."""
    return sorted(name for name in names if (DIRECTORY / name).exists())
