"""A program that the launcher keeps running: started in its own process group, restarted with backoff."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

#: The child asks the kernel to kill it when the process of this number, its parent, ends (see cli.py).
DIE_WITH = "FRAMEKEEPER_DIE_WITH"
#: A program that lived so long did start: its next failure is a new one.
SETTLED_SECONDS = 60.0
LONGEST_BACKOFF = 30.0
#: What a killed program's children get to follow it by themselves: an engine's warden removes shared memory.
ORPHAN_SECONDS = 5.0
#: A log file above this size is put aside at the next start.
LOG_BYTES = 20 * 1024 * 1024
TAIL_LINES = 15
TAIL_BYTES = 16 * 1024


class Child:
    """One program. Not thread-safe; the launcher's loop calls it."""

    def __init__(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], log_file: Path
    ) -> None:
        self.name = name
        self.command = list(command)
        self.environment = {**environment, DIE_WITH: str(os.getpid())}
        self.log_file = log_file
        self.failures = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._began = 0.0
        self._log_offset = 0
        self._not_before = 0.0

    @property
    def pid(self) -> int | None:
        """Process id while it runs."""
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        """Start it now."""
        self.log_file.parent.mkdir(parents=True, exist_ok=True)
        if self.log_file.exists() and self.log_file.stat().st_size > LOG_BYTES:
            self.log_file.replace(self.log_file.with_suffix(".log.1"))
        with self.log_file.open("ab") as output:
            self._log_offset = output.tell()
            self._process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self.environment,
                process_group=0,  # Ctrl-C in a terminal reaches the launcher alone
            )
        self._began = time.monotonic()

    def ended(self) -> int | None:
        """Its exit status if it ended since the last call, else None. What it left in its group is killed."""
        if self._process is None or (status := self._process.poll()) is None:
            return None
        self._kill_group(self._process.pid)
        self._process = None
        lived = time.monotonic() - self._began
        self.failures = 1 if lived > SETTLED_SECONDS else self.failures + 1
        self._not_before = time.monotonic() + self.backoff
        return status

    @property
    def backoff(self) -> float:
        """Seconds until the next start."""
        return min(LONGEST_BACKOFF, 0.5 * 2.0 ** max(0, self.failures - 1))

    def restart_if_due(self) -> bool:
        """Start it again when it is down and the backoff is over."""
        if self._process is not None or time.monotonic() < self._not_before:
            return False
        self.start()
        return True

    def stop(self, seconds: float, hurry: Callable[[], bool] = lambda: False) -> bool:
        """SIGTERM, wait, SIGKILL; then nothing of it is left. False when it had to be killed.

        The wait ends early when `hurry` says so.
        """
        process = self._process
        if process is None:
            return True
        family = _descendants(process.pid)
        with suppress(ProcessLookupError):
            process.terminate()
        deadline = time.monotonic() + seconds
        while process.poll() is None and time.monotonic() < deadline and not hurry():
            family |= _descendants(process.pid)
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.2)
        polite = process.poll() is not None
        self._kill_group(process.pid)
        process.wait()
        _, orphans = psutil.wait_procs(list(family), timeout=ORPHAN_SECONDS)
        for orphan in orphans:
            with suppress(psutil.NoSuchProcess):
                orphan.kill()  # psutil compares start times: a number used anew is never hit
        psutil.wait_procs(orphans, timeout=5)
        self._process = None
        return polite

    def tail(self) -> str:
        """The last lines it logged since its last start."""
        with self.log_file.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(self._log_offset, size - TAIL_BYTES))
            lines = log.read().decode(errors="replace").splitlines()
        return "\n".join(lines[-TAIL_LINES:])

    @staticmethod
    def _kill_group(group: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


def _descendants(pid: int) -> set[psutil.Process]:
    try:
        return set(psutil.Process(pid).children(recursive=True))
    except psutil.NoSuchProcess:
        return set()
