"""Hold a card's memory until killed, so that about GIGABYTES stay free: `filler.py GIGABYTES`."""

from __future__ import annotations

import sys
import time

import torch

CHUNK = 2 * 10**9


def main(keep: float) -> None:
    """Plain allocations in pieces; says when it is full."""
    held = []
    while (spare := torch.cuda.mem_get_info()[0] - int(keep * 1e9)) > 64 * 2**20:
        held.append(torch.empty(min(spare, CHUNK), dtype=torch.uint8, device="cuda"))
    print(f"full: {torch.cuda.mem_get_info()[0] / 1e9:.2f} GB are free", flush=True)
    while True:
        time.sleep(1)


if __name__ == "__main__":
    main(float(sys.argv[1]))
