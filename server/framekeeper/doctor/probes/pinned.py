"""How much host memory CUDA page-locks.

Options: `bytes` wanted, `piece` bytes at a time.
"""

# ruff: noqa: PLC0415  A probe is asked before it imports what may end it.

from __future__ import annotations

import os
import time
from typing import Any

from framekeeper.doctor.probes.allocator import die_first
from framekeeper.doctor.probes.answer import options, tell


def locked(wanted: int, piece: int) -> tuple[int, str]:
    """Bytes that cudaHostAlloc gave, and the words it ended with where it gave fewer than wanted."""
    import torch

    held: list[Any] = []
    had = 0
    while had < wanted:
        size = min(piece, wanted - had)
        try:
            held.append(torch.empty(size, dtype=torch.uint8, pin_memory=True))
        except RuntimeError as error:
            return had, str(error).splitlines()[0]
        had += size
    return had, ""


def main() -> None:
    """One line with the bytes that could be locked."""
    wanted = options()
    die_first()
    began = time.monotonic()
    had, words = locked(int(wanted["bytes"]), int(wanted["piece"]))
    seconds = round(time.monotonic() - began, 2)
    tell("page-locked", not words, words or "all of it", bytes=had, seconds=seconds)
    # Unlocking tens of GiB is the kernel's work at the end of the process.
    os._exit(0)


if __name__ == "__main__":
    main()
