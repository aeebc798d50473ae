"""Who holds a card, from what the driver prints."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from framekeeper.engine import devices

PRINTED = """GPU-11111111-2222-3333-4444-555555555555, 4711, /opt/runtime/bin/python, 22144
GPU-11111111-2222-3333-4444-555555555555, 4712, [Not Found], [N/A]
GPU-99999999-2222-3333-4444-555555555555, 4713, other, 100
[Insufficient Permissions]
"""
CARD = "GPU-11111111-2222-3333-4444-555555555555"


def test_only_processes_on_our_cards_are_named() -> None:
    found = devices.parse(PRINTED, [CARD])
    assert [(each.pid, each.memory_bytes) for each in found] == [(4711, 22144 * 1024**2), (4712, None)]
    assert str(found[0]) == f"process 4711 /opt/runtime/bin/python (21.6 GiB) on {CARD}"


async def test_a_cpu_is_free_without_asking_any_driver() -> None:
    assert await devices.wait_free(["cpu-0"], seconds=0) == []


async def test_waiting_ends_when_the_card_is_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = tmp_path / "nvidia-smi"
    driver.write_text(
        f"#!/bin/sh\n[ -e {tmp_path}/asked ] || echo '{CARD}, 7, python, 5'\ntouch {tmp_path}/asked\n"
    )
    driver.chmod(driver.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert await devices.wait_free([CARD], seconds=10, every=0.01) == []


async def test_waiting_is_bounded_and_names_the_holder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = tmp_path / "nvidia-smi"
    driver.write_text(f"#!/bin/sh\necho '{CARD}, 7, python, 5'\n")
    driver.chmod(driver.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    (holder,) = await devices.wait_free([CARD], seconds=0.05, every=0.01)
    assert holder.pid == 7
