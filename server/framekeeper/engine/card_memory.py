"""Who uses a card's memory: our engines, or others. Read from nvidia-smi, so the supervisor needs no CUDA."""

from __future__ import annotations

import csv
import subprocess
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from io import StringIO

from framekeeper.engine import devices
from framekeeper.engine.devices import Holder

_MIB = 1024**2
_QUERY = ("nvidia-smi", "--query-gpu=uuid,memory.total,memory.used", "--format=csv,noheader,nounits")


@dataclass(frozen=True, kw_only=True)
class CardMemory:
    """Bytes of one card. `others` includes what the driver holds for itself."""

    device: str
    total: int
    engines: int
    others: int


def parse(text: str) -> dict[str, tuple[int, int]]:
    """Total and used bytes by card, from nvidia-smi's CSV; lines of another form are left out."""
    found = {}
    for row in csv.reader(StringIO(text), skipinitialspace=True):
        if len(row) == 3 and row[1].isdigit() and row[2].isdigit():
            found[row[0]] = (int(row[1]) * _MIB, int(row[2]) * _MIB)
    return found


def share(
    cards: Mapping[str, tuple[int, int]],
    holders: Collection[Holder],
    ours: Collection[int],
    reported: Mapping[str, int],
) -> list[CardMemory]:
    """Split each card's used bytes.

    `ours` are ids of our engines' processes. In a container the driver names other ids than ours, or none:
    then an engine counts with what its own allocator `reported` for its card, which leaves the context of
    CUDA (about half a GB) to the others.
    """
    found = []
    for device, (total, used) in cards.items():
        mine = [each for each in holders if each.device == device and each.pid in ours]
        known = [each.memory_bytes for each in mine if each.memory_bytes is not None]
        engines = min(used, sum(known) if known else reported.get(device, 0))
        found.append(CardMemory(device=device, total=total, engines=engines, others=used - engines))
    return found


def read(ours: Collection[int], reported: Mapping[str, int], timeout: float = 20.0) -> list[CardMemory]:
    """All cards of this host now; none where there is no driver, or it does not answer."""
    try:
        answer = subprocess.run(_QUERY, capture_output=True, text=True, timeout=timeout, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    cards = parse(answer.stdout)
    return share(cards, devices.holders(cards.keys(), timeout), ours, reported)
