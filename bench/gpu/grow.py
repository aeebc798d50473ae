"""Touch memory once: a small virtual machine's memory grows as it is used, and rules look at its total.

`grow.py GIB`: on the bench machine MemTotal starts far below what it may use.
"""

from __future__ import annotations

import mmap
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np

PIECE = 2**30


def touch(_: int) -> mmap.mmap:
    """A gibibyte, every page written."""
    piece = mmap.mmap(-1, PIECE)
    np.frombuffer(piece, np.uint8)[:: mmap.PAGESIZE] = 1
    return piece


if __name__ == "__main__":
    with ThreadPoolExecutor(8) as pool:
        held = list(pool.map(touch, range(int(sys.argv[1]))))
    print(f"touched {len(held)} GiB")
