"""Limits and kills of a container's control group are seen in both versions of control groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from framekeeper.engine import host, inquest
from framekeeper.settings import Settings

GIB = 1024**3


@pytest.mark.parametrize("version", [1, 2])
def test_a_containers_memory_limit_counts_and_not_the_hosts_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    files = (tmp_path / "memory.max", tmp_path / "memory.limit_in_bytes")
    files[2 - version].write_text(f"{GIB}\n")
    monkeypatch.setattr(host, "_CGROUP_LIMITS", files)
    assert host.gather(Settings()).memory_bytes == GIB


@pytest.mark.parametrize("text", ["max\n", "9223372036854771712\n", ""])
def test_without_a_limit_it_is_the_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(host, "_CGROUP_LIMITS", ())
    whole = host.gather(Settings()).memory_bytes
    (tmp_path / "limit").write_text(text)
    monkeypatch.setattr(host, "_CGROUP_LIMITS", (tmp_path / "limit",))
    assert host.gather(Settings()).memory_bytes == whole


@pytest.mark.parametrize(
    ("counters", "kills"),
    [
        ("low 0\nhigh 0\nmax 7\noom 3\noom_kill 2\n", 2),
        ("oom_kill_disable 0\nunder_oom 0\noom_kill 5\n", 5),
        ("oom_kill_disable 0\nunder_oom 0\n", None),
    ],
    ids=["version 2", "version 1", "version 1 before Linux 4.13"],
)
def test_the_kernels_kills_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counters: str, kills: int | None
) -> None:
    (tmp_path / "counters").write_text(counters)
    monkeypatch.setattr(inquest, "_CGROUP_EVENTS", (tmp_path / "missing", tmp_path / "counters"))
    assert inquest.oom_kills() == kills
