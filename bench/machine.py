"""What the figures were measured on, and how busy it was before."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

#: Over which the machine's own load is measured before a run.
LOOK_SECONDS = 3.0
PACKAGES = ("framekeeper", "fastapi", "gunicorn", "uvicorn", "procrastinate", "psycopg", "httpx")


def cpu_model() -> str:
    """The processor's name."""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def facts() -> dict[str, Any]:
    """Cores, processor, memory in GiB, kernel."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "cpu": cpu_model(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "kernel": platform.release(),
    }


def load() -> dict[str, Any]:
    """How busy the machine is with other things: call it before anything is started."""
    return {
        "loadavg_1min": round(os.getloadavg()[0], 2),
        "loadavg_5min": round(os.getloadavg()[1], 2),
        "cpu_percent": psutil.cpu_percent(interval=LOOK_SECONDS),
        "available_memory_gib": round(psutil.virtual_memory().available / 2**30, 1),
    }


def versions() -> dict[str, str]:
    """Of this environment; those of the engine are told by the engine."""
    return {"python": platform.python_version()} | {name: metadata.version(name) for name in PACKAGES}


def revision(project: Path) -> dict[str, Any]:
    """When, and of which commit; `changed` lists tracked files that differ from it."""

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", project, *arguments], capture_output=True, text=True, check=True
        ).stdout.strip()

    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": git("rev-parse", "HEAD"),
        "changed": git("diff", "--name-only", "HEAD").splitlines(),
    }


def pip_cache_mib() -> int:
    """What pip has downloaded before: with a full cache an installation is quicker than on a new machine."""
    cache = subprocess.run(
        [sys.executable, "-m", "pip", "cache", "dir"], capture_output=True, text=True, check=False
    ).stdout.strip()
    if not cache:  # switched off
        return 0
    return sum(file.stat().st_size for file in Path(cache).rglob("*") if file.is_file()) >> 20
