"""Processes that belong to an engine, found by a mark in their environment, wherever they hide.

A process group or session can be left; the environment that a process was started with stays readable in
/proc. (setproctitle, which vllm uses, writes over it unless SPT_NOENV is set, so the supervisor sets that.)
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

#: Set for every process of a supervisor's engines; the value is its run directory.
RUN = "FRAMEKEEPER_RUN_DIRECTORY"
#: Set for every process of one start of one engine; the value is unique.
START = "FRAMEKEEPER_ENGINE_START"


def find(variable: str, value: str) -> list[int]:
    """Ids of living processes with this in their environment, this process excepted."""
    mark = f"\0{variable}={value}\0".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                # A zombie's environment reads as empty.
                if mark in b"\0" + (entry / "environ").read_bytes() + b"\0":
                    found.append(int(entry.name))
    return found


def kill(variable: str, value: str, *, seconds: float = 20.0) -> list[int]:
    """Kill them and wait until they are gone; returns who there was. Raises TimeoutError.

    A process in an uninterruptible call into a driver is the one that SIGKILL cannot end in time.
    """
    killed: set[int] = set()
    deadline = time.monotonic() + seconds
    while living := find(variable, value):
        if time.monotonic() > deadline:
            raise TimeoutError(f"these processes cannot be ended: {living}")
        for pid in living:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        killed.update(living)
        time.sleep(0.02)
    return sorted(killed)
