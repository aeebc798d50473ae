"""What breaks around the engines: processes are killed or restarted, the database goes away."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from framekeeper.database import embedded
from soak import watch
from soak.ledger import Ledger
from system import System

#: Weights of what happens next.
ACTS = {
    "worker kill": 30,
    "warden kill": 12,
    "supervisor kill": 5,
    "supervisor restart": 2,
    "gateway worker kill": 12,
    "gateway restart": 3,
    "database restart": 4,
    "database kill": 3,
    "connections cut": 12,
}
#: Those that every run has, at these shares of its time.
CERTAIN = {"database restart": 0.3, "supervisor kill": 0.45, "database kill": 0.6, "supervisor restart": 0.75}
#: Seconds between two of them.
PAUSE = (4.0, 11.0)
#: How often sessions are cut in a row.
CUTS = 5
#: How long the database stays away.
AWAY = (0.0, 5.0)


@dataclass
class Window:
    """A time in which clients may meet errors of a kind; `end` is infinite while it lasts."""

    what: str
    begin: float
    end: float = float("inf")


@dataclass
class Damage:
    """What was done."""

    counted: Counter[str] = field(default_factory=Counter)
    windows: list[Window] = field(default_factory=list)
    #: Seconds that supervisors took to stop in good order.
    stops: list[float] = field(default_factory=list)

    def around(self, began: float, ended: float, what: tuple[str, ...], grace: float) -> bool:
        """Whether a time touches a window of these kinds, `grace` seconds more at its end."""
        return any(
            each.what in what and began <= each.end + grace and ended >= each.begin for each in self.windows
        )


def plan(seconds: float, dice: random.Random) -> list[tuple[float, str]]:
    """What happens when, in seconds from the start."""
    acts = [(share * seconds, act) for act, share in CERTAIN.items()]
    at = dice.uniform(*PAUSE)
    while at < seconds - 5:
        if all(abs(at - other) > PAUSE[0] for other, _ in acts):
            acts.append((at, dice.choices(list(ACTS), list(ACTS.values()))[0]))
        at += dice.uniform(*PAUSE)
    return sorted(acts)


class Breaker(threading.Thread):
    """Carries the plan out, until `stopping` is set. Holds `changing` while the supervisor is replaced."""

    def __init__(
        self,
        system: System,
        database: Path,
        ledger: Ledger,
        acts: list[tuple[float, str]],
        dice: random.Random,
        stopping: threading.Event,
    ) -> None:
        super().__init__(name="breaker", daemon=True)
        self.damage = Damage()
        self.changing = threading.Lock()
        self._system = system
        self._database = database
        self._ledger = ledger
        self._acts = acts
        self._dice = dice
        self._stopping = stopping

    def run(self) -> None:
        """Act at the planned times."""
        began = time.monotonic()
        for at, act in self._acts:
            if self._stopping.wait(max(0.0, began + at - time.monotonic())):
                return
            try:
                getattr(self, "_" + act.replace(" ", "_"))()
            except Exception as error:
                self._ledger.complain(f"{act}: {type(error).__name__}: {error}")
            self.damage.counted[act] += 1

    @contextlib.contextmanager
    def _window(self, what: str) -> Iterator[None]:
        window = Window(what, time.monotonic())
        self.damage.windows.append(window)
        try:
            yield
        finally:
            window.end = time.monotonic()

    # -- engines --------------------------------------------------------------------------------------------

    def _worker_kill(self) -> None:
        self._kill_one(warden=False)

    def _warden_kill(self) -> None:
        self._kill_one(warden=True)

    def _kill_one(self, *, warden: bool) -> None:
        fitting = [
            pid
            for pid, command in self._system.engine_processes().items()
            if "framekeeper.engine.worker" in command and ("warden.py" in command) is warden
        ]
        if fitting:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._dice.choice(sorted(fitting)), signal.SIGKILL)

    # -- supervisor -----------------------------------------------------------------------------------------

    def _supervisor_kill(self) -> None:
        with self.changing:
            self._system.kill_supervisor()
            self._system.start_supervisor()

    def _supervisor_restart(self) -> None:
        self.restart_supervisor()

    def stop_supervisor(self) -> None:
        """Stop it in good order. One that does not listen yet is just ended by the signal."""
        young = self._system.supervisor_says()["http"] == 0
        began = time.monotonic()
        code = self._system.stop_supervisor()
        self.damage.stops.append(time.monotonic() - began)
        if code != 0 and not (young and code == -signal.SIGTERM):
            self._ledger.complain(f"a supervisor that was asked to stop ended with {code}")

    def restart_supervisor(self) -> None:
        """Stop it in good order, as a deployment does, and start it again."""
        with self.changing:
            self.stop_supervisor()
            if left := self._system.engine_processes():
                self._ledger.complain(f"a stopped supervisor left {left}")
            self._system.start_supervisor()

    # -- gateways -------------------------------------------------------------------------------------------

    def _gateway_worker_kill(self) -> None:
        port = self._dice.choice(sorted(self._system.gateways))
        workers = psutil.Process(self._system.gateways[port].pid).children()
        if workers:
            with self._window("gateway"), contextlib.suppress(psutil.NoSuchProcess):
                self._dice.choice(workers).kill()

    def _gateway_restart(self) -> None:
        port = self._dice.choice(sorted(self._system.gateways))
        with self._window("gateway"):
            gateway = self._system.gateways[port]
            gateway.terminate()
            gateway.wait(60)
            self._system.start_gateway(port)

    # -- database -------------------------------------------------------------------------------------------

    def _database_restart(self) -> None:
        self._away(kill=False)

    def _database_kill(self) -> None:
        self._away(kill=True)

    def _connections_cut(self) -> None:
        """Every session ends at once, wherever its statement is: answers to commits are lost, too."""
        cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
        with self._window("database"):
            for _ in range(CUTS):
                watch.rows(self._system.database_url, f"{cut} AND backend_type = 'client backend'")
                time.sleep(self._dice.uniform(0, 0.3))

    def _away(self, *, kill: bool) -> None:
        with self._window("database"):
            if kill:
                server = embedded.running_server(self._database)
                assert server is not None, "no PostgreSQL runs"
                server.kill()
            else:
                embedded.stop(self._database)
            time.sleep(self._dice.uniform(*AWAY))
            for _ in range(10):  # a killed server's zombie may still be there
                if embedded.revive(self._database, self._database.with_name("postgres.log")):
                    break
                time.sleep(0.2)
