"""Systems of the fault backend."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import faulty
from system import System


@pytest.fixture
def start(tmp_path: Path, postgres_url: str) -> Iterator[faulty.Start]:
    """Start a system whose engine breaks as the given faults say; nothing may be left of it."""
    systems: list[System] = []

    def begin(faults: list[dict[str, Any]], **how: Any) -> System:
        systems.append(faulty.begin(tmp_path, postgres_url, faults, **how))
        return systems[-1]

    yield begin
    for system in systems:
        try:
            system.close()
        finally:
            system.abandon()
