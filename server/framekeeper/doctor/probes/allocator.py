"""Allocate and free what the profile needs at its peak, with its allocator's settings.

Options: `device`, `weights` and `working` (bytes), `piece` (bytes of one weight: a block). Weights are taken
piece by piece and stay; what a step works with is taken in growing and shrinking pieces, three times, as
steps and decode do. Host memory is written to, because only touched pages count.
"""

# ruff: noqa: PLC0415  A probe is asked before it imports what may end it.

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from framekeeper.doctor.probes.answer import options, tell

_ROUNDS = 3
_MIB = 1024**2


def die_first() -> None:
    """Where memory runs out this process is to be killed, not the engine beside it."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


def take(torch: Any, size: int, device: str) -> Any:
    """A tensor of so many bytes that really is in memory."""
    tensor = torch.empty(max(size, 1), dtype=torch.uint8, device=device)
    tensor.fill_(1)
    return tensor


def main() -> None:
    """One line: everything was had, or at how many bytes what failed."""
    wanted = options()
    die_first()
    import torch

    device, piece = wanted["device"], max(int(wanted["piece"]), _MIB)
    held: list[Any] = []
    had = 0
    began = time.monotonic()
    at = "weights"
    try:
        for _ in range(int(wanted["weights"]) // piece):
            held.append(take(torch, piece, device))
            had += piece
        at = "what a step works with"
        for number in range(_ROUNDS):
            # Sizes that never repeat exactly are what fragments: each round cuts the same bytes otherwise.
            step = max(int(wanted["working"]) // (3 + 2 * number), 1)
            working = [take(torch, step, device) for _ in range(int(wanted["working"]) // step)]
            if device == "cuda":
                torch.cuda.synchronize()
            del working
    except Exception as error:
        first = (str(error).strip().splitlines() or ["without words"])[0]
        tell(at, False, f"{type(error).__name__}: {first}"[:600], bytes=had)
        return
    figures = {"bytes": had + int(wanted["working"]), "seconds": round(time.monotonic() - began, 2)}
    if device == "cuda":
        figures["reserved"] = torch.cuda.max_memory_reserved()
        figures["allocated"] = torch.cuda.max_memory_allocated()
        held.clear()
        torch.cuda.empty_cache()
        figures["kept"] = torch.cuda.memory_reserved()
    tell("peak", True, "allocated and freed", **figures)


if __name__ == "__main__":
    main()
