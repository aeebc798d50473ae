"""The people around the system: a platform that starts programs again, an operator."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import psutil

from soak import checks
from soak.breakage import Breaker
from soak.ledger import Ledger
from system import PROJECT, System

#: Seconds between two looks.
LOOK_SECONDS = 0.5
#: How long the operator watches a failed or degraded engine before it is reset.
FAILED_SECONDS, DEGRADED_SECONDS = 2.0, 25.0
#: A command of the operator takes effect within seconds, so it is not repeated at once.
RESET_PAUSE_SECONDS = 8.0


@dataclass
class Memory:
    """Resident bytes of one supervisor process over its life, from its first ready engine on."""

    began: float
    first: int
    last: int
    seconds: float = 0.0


@dataclass
class Seen:
    """What the attendant saw and did."""

    resets: Counter[str] = field(default_factory=Counter)
    supervisors: dict[int, Memory] = field(default_factory=dict)
    supervisor_ends: int = 0
    #: Names in /dev/shm that the system's processes used at some time.
    segments: set[str] = field(default_factory=set)


class Attendant(threading.Thread):
    """Looks after the system until `stopping` is set."""

    def __init__(self, system: System, breaker: Breaker, ledger: Ledger, stopping: threading.Event) -> None:
        super().__init__(name="attendant", daemon=True)
        self.seen = Seen()
        self._system = system
        self._breaker = breaker
        self._ledger = ledger
        self._stopping = stopping
        self._since: dict[tuple[str, str], float] = {}
        self._reset_at: dict[str, float] = {}

    def run(self) -> None:
        """Look and act."""
        while not self._stopping.wait(LOOK_SECONDS):
            try:
                self._look_after_supervisor()
                self.seen.segments |= checks.segments(self._system)
                says = self._system.supervisor_says()
                self._measure(says)
                for engine in says["engines"]:
                    self._look_after_engine(engine)
            except Exception as error:
                self._ledger.complain(f"attendant: {type(error).__name__}: {error}")

    def _look_after_supervisor(self) -> None:
        with self._breaker.changing:
            supervisor = self._system.supervisor
            assert supervisor is not None
            if supervisor.poll() is None:
                return
            self.seen.supervisor_ends += 1
            end = self._system.log()[-1500:]
            self._ledger.complain(f"the supervisor ended by itself with {supervisor.returncode}: {end}")
            self._system.start_supervisor()

    def _measure(self, says: dict[str, Any]) -> None:
        supervisor = self._system.supervisor
        if says["status"] != "ready" or supervisor is None:
            return
        try:
            resident = psutil.Process(supervisor.pid).memory_info().rss
        except psutil.NoSuchProcess:
            return
        now = time.monotonic()
        memory = self.seen.supervisors.setdefault(supervisor.pid, Memory(now, resident, resident))
        memory.last, memory.seconds = resident, now - memory.began

    def _look_after_engine(self, engine: dict[str, Any]) -> None:
        name, state = engine["id"], engine["state"]
        ill = "failed" if state == "failed" else "degraded" if _degraded(engine) else None
        for other in ("failed", "degraded"):
            if other != ill:
                self._since.pop((name, other), None)
        if ill is None:
            return
        since = self._since.setdefault((name, ill), time.monotonic())
        patience = FAILED_SECONDS if ill == "failed" else DEGRADED_SECONDS
        now = time.monotonic()
        if now - since > patience and now - self._reset_at.get(name, 0) > RESET_PAUSE_SECONDS:
            self._reset_at[name] = now
            self._reset(name, ill)

    def _reset(self, name: str, ill: str) -> None:
        command = [sys.executable, "-m", "framekeeper", "engines", "reset", name]
        finished = subprocess.run(
            command,
            env=self._system.environment(),
            cwd=PROJECT,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if finished.returncode == 0 and "nothing to do" not in finished.stdout:
            self.seen.resets[ill] += 1
        elif finished.returncode == 0:
            self.seen.resets[f"{ill}, but nothing to do"] += 1
        elif "database" not in finished.stderr:
            self._ledger.complain(f"engines reset: {finished.returncode} {finished.stderr[-300:]}")


def _degraded(engine: dict[str, Any]) -> bool:
    # A busy one tells it in its detail only.
    return engine["state"] == "degraded" or (engine["state"] == "busy" and bool(engine["detail"]))
