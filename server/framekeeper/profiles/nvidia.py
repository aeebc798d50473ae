"""Cards and driver of this host as `nvidia-smi` tells them; the supervisor and the doctor import no torch."""

from __future__ import annotations

import csv
import re
from io import StringIO

from framekeeper.profiles import program
from framekeeper.profiles.facts import Card

_FIELDS = ("uuid", "name", "compute_cap", "memory.total", "driver_version")
_CAPABILITY = re.compile(r"[0-9]+\.[0-9]+")
_MIB = 1024**2


def parse(text: str) -> tuple[tuple[Card, ...], str | None]:
    """Cards in the driver's order and the driver's version, from nvidia-smi's CSV without header and units.

    Lines of another form (`[Unknown Error]` of a card that has fallen off the bus, `[N/A]`) are left out.
    """
    cards, driver = [], None
    for row in csv.reader(StringIO(text), skipinitialspace=True):
        if len(row) != len(_FIELDS) or not _CAPABILITY.fullmatch(row[2]) or not row[3].isdigit():
            continue
        uuid, name, capability, memory, driver = row
        cards.append(Card(uuid=uuid, name=name, capability=capability, memory_bytes=int(memory) * _MIB))
    return tuple(cards), driver


def query(timeout: float = 20.0) -> tuple[tuple[Card, ...], str | None]:
    """Cards and driver of this host; no cards and None where there is no driver or it does not answer."""
    command = ["nvidia-smi", f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits"]
    try:
        status, text, _ = program.ask(command, timeout)
    except (OSError, program.NoAnswer):
        return (), None
    return parse(text) if status == 0 else ((), None)
