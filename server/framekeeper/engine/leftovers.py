"""Processes of an earlier supervisor of this run directory, found by what is in their environment."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

VARIABLE = "FRAMEKEEPER_RUN_DIRECTORY"


def find(run_directory: Path) -> list[int]:
    """Process ids whose environment names this run directory, this process excepted."""
    mark = f"{VARIABLE}={run_directory}\0".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if mark in (entry / "environ").read_bytes() + b"\0":
                    found.append(int(entry.name))
    return found


def kill(run_directory: Path, *, seconds: float = 20.0) -> list[int]:
    """Kill leftovers and wait until they are gone; returns who there was. Raises TimeoutError.

    Only called by the holder of the run directory's lock, so whatever is found belongs to nobody.
    """
    killed: set[int] = set()
    deadline = time.monotonic() + seconds
    while living := find(run_directory):
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes of an earlier run cannot be ended: {living}")
        for pid in living:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        killed.update(living)
        time.sleep(0.05)
    return sorted(killed)
