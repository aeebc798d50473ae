"""Resident memory by program."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

import psutil

from framekeeper.database.embedded import running_server
from system import System

MIB = 1 << 20


def proportional(pid: int) -> float:
    """Proportional set size in MiB (shared pages divided among their users); resident where unreadable."""
    process = psutil.Process(pid)
    try:
        return float(process.memory_full_info().pss) / MIB
    except psutil.AccessDenied:
        return float(process.memory_info().rss) / MIB


def _sum(pids: Iterable[int]) -> float:
    total = 0.0
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            total += proportional(pid)
    return total


def tree(pid: int) -> list[int]:
    """A process and all below it."""
    process = psutil.Process(pid)
    return [pid, *(child.pid for child in process.children(recursive=True))]


def of_system(system: System, postgres: Path) -> dict[str, float]:
    """MiB of each program of a running system with one gateway; `postgres` is the server's directory."""
    assert system.supervisor is not None
    (gateway,) = system.gateways.values()
    master, *workers = tree(gateway.pid)
    worker = system.worker_pid()
    others = [pid for pid in system.engine_processes() if pid != worker]
    server = running_server(postgres)
    figures = {"gateway master": _sum([master])}
    for number, pid in enumerate(workers, 1):
        figures[f"gateway process {number}"] = _sum([pid])
    return figures | {
        "supervisor": _sum([system.supervisor.pid]),
        "warden and trackers": _sum(others),
        "worker (torch, engine)": _sum(tree(worker)),
        "PostgreSQL, all processes": _sum(tree(server.pid)) if server else 0.0,
    }
