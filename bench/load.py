"""Puts the gateway under a crowd while the engine works, and vllm-omni's own server under the same.

    python bench/load.py [--seconds N] [--clients N] [--listeners N] [--fault] [--no-peer] [--no-record]

200 clients submit, poll once a second and delete; then the same again with 500 listeners to events. One
gateway of two processes, real vllm-omni on the CPU with the small checkpoint (`--fault`: the fault backend).
Exit status 1 when there was an answer of 500 or above, a broken connection, no stream that ended right,
a gateway that grew, or a part that could not be measured.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import Any

PROJECT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(PROJECT / "tests"))

import crowd  # noqa: E402
import footprint  # noqa: E402
import machine  # noqa: E402
import peer  # noqa: E402
from framekeeper.database.embedded import embedded_postgres  # noqa: E402
from framekeeper.database.migrate import migrate  # noqa: E402
from report import OURS, PEER, Report  # noqa: E402
from system import System, fault_profile  # noqa: E402
from videos import SMALL  # noqa: E402

RESULTS = PROJECT / "bench" / "results" / "load.jsonl"
RUNTIME = PROJECT / ".runtimes" / "omni-0.30-cpu" / "bin" / "python"
#: The engine makes the smallest job there is again and again.
FIELDS: dict[str, Any] = SMALL | {"num_inference_steps": 2}
#: Jobs that listeners share.
FOLLOWED = 10
SAMPLE_SECONDS = 1.0
#: A process that is larger by more than this in the last quarter than in the second one grows. The first
#: quarter is when it fills its pools and caches.
MAY_GROW = 0.10


class Memory:
    """MiB of some processes, looked at once a second in a thread."""

    def __init__(self, read: Callable[[], dict[str, float]]) -> None:
        self.samples: list[dict[str, float]] = []
        self._read = read
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Look while the block runs."""
        self._thread.start()
        yield
        self._over.set()
        self._thread.join(10)

    def _look(self) -> None:
        while not self._over.wait(SAMPLE_SECONDS):
            self.samples.append(self._read())

    def quarters(self) -> dict[str, tuple[float, float]]:
        """Mean of the second and of the last quarter, by process."""
        n = len(self.samples)
        second, last = self.samples[n // 4 : n // 2 or 1], self.samples[-max(1, n // 4) :]
        return {
            name: (fmean(each[name] for each in second), fmean(each[name] for each in last))
            for name in self.samples[0]
        }


class Load:
    """One run: the parts, their figures, and what was wrong."""

    def __init__(self, arguments: argparse.Namespace, home: Path) -> None:
        self.arguments = arguments
        self.home = home
        self.report = Report()
        self.wrong: list[str] = []

    def ours(self) -> None:
        """The gateway without and with listeners."""
        settings: dict[str, Any] = {"profile": "cpu-tiny", "model": self.home / "model"}
        python: Path | str = RUNTIME
        if self.arguments.fault:
            settings = {"profile": fault_profile(self.home / "profiles", [], step_seconds=0.05)}
            python = sys.executable
        with embedded_postgres(self.home / "postgres") as database:
            migrate(database)
            system = System(
                self.home / "system", database, engine_python=python, log_level="warning", **settings
            )
            try:
                system.start_supervisor()
                system.wait_ready(240)
                self._crowds(system, system.start_gateway())
                system.close()
            finally:
                system.abandon()

    def _crowds(self, system: System, url: str) -> None:
        (gateway,) = system.gateways.values()
        _, *workers = footprint.tree(gateway.pid)

        def memory() -> dict[str, float]:
            return {f"gateway process {n}": footprint.proportional(pid) for n, pid in enumerate(workers, 1)}

        plan = self.arguments
        self._part(f"{plan.clients} clients", url, OURS, memory, clients=plan.clients, listeners=0)
        if not plan.listeners:
            return
        if not crowd.has_events(url, FIELDS):
            self.report.left_out["events"] = "the gateway has no route for them"
            return
        name = f"{plan.clients} clients, {plan.listeners} listeners"
        self._part(name, url, OURS, memory, clients=plan.clients, listeners=plan.listeners, jobs=FOLLOWED)
        time.sleep(3)
        left = sum(memory().values())
        self.report.add(name, "both gateway processes after it", "MiB", left)

    def upstream(self) -> None:
        """vllm-omni's own server: it has no events, and forgets its jobs when it ends."""
        python = self.arguments.peer_python or peer.environment(RUNTIME, self.home / "peer")
        with peer.serving(python, self.home / "model", self.home / "upstream") as server:
            self._part(
                f"{self.arguments.clients} clients", server.url, PEER,
                lambda: {"server and engine": peer.memory(server)},
                clients=self.arguments.clients, listeners=0,
            )  # fmt: skip

    def _part(
        self, name: str, url: str, side: str, read: Callable[[], dict[str, float]], **crowd_of: int
    ) -> None:
        print(f"{time.strftime('%H:%M:%S')} {side}: {name}", flush=True)
        memory = Memory(read)
        with memory.watched():
            seen = crowd.run(url, FIELDS, seconds=self.arguments.seconds, **crowd_of)
        add = self.report.add
        for kind, seconds in seen.seconds.items():
            add(name, kind, "ms", [each * 1e3 for each in seconds], side=side)
            add(name, f"{kind}: rate", "1/s", len(seconds) / self.arguments.seconds, side=side)
        add(name, "jobs that clients saw completed", "jobs", seen.finished, side=side)
        if seen.most_open:
            add(name, "streams open at once", "streams", seen.most_open, side=side)
            add(name, "events received", "events", seen.events, side=side)
            add(name, "streams that ended with their end", "streams", seen.streams_ended, side=side)
        for process, (second, last) in memory.quarters().items():
            add(name, f"{process}, second quarter", "MiB", second, side=side)
            add(name, f"{process}, last quarter", "MiB", last, side=side)
            if side == OURS and last > second * (1 + MAY_GROW):
                self.wrong.append(f"{name}: {process} grew from {second:.0f} to {last:.0f} MiB")
        statuses = {f"{kind} {status}": n for (kind, status), n in sorted(seen.statuses.items())}
        self.report.told[f"{side}, {name}: answers"] = statuses | dict(seen.broken)
        if side == OURS and (errors := seen.server_errors()):
            self.wrong.append(f"{name}: {errors}")
        if side == OURS and crowd_of["listeners"] and not seen.streams_ended:
            self.wrong.append(f"{name}: no stream ended with its end")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--listeners", type=int, default=500)
    parser.add_argument("--fault", action="store_true", help="the fault backend instead of vllm-omni")
    parser.add_argument("--no-peer", action="store_true", help="leave out vllm-omni's own server")
    parser.add_argument("--no-record", action="store_true", help="do not append to the results")
    parser.add_argument("--peer-python", type=Path, help="Python of an environment made before")
    return parser.parse_args()


def main() -> int:
    """Exit status as in the module's docstring."""
    arguments = _arguments()
    head = machine.revision(PROJECT) | {"fault": arguments.fault, "machine": machine.facts()}
    head |= {"load_before": machine.load(), "seconds": arguments.seconds}
    with tempfile.TemporaryDirectory(prefix="framekeeper-bench-") as temporary:
        home = Path(temporary)
        home.chmod(0o755)
        load = Load(arguments, home)
        if not (arguments.fault and arguments.no_peer):
            subprocess.run([RUNTIME, "-m", "framekeeper.checkpoint.tiny", home / "model"], check=True)
        load.ours()
        if not arguments.no_peer:
            try:
                load.upstream()
            except Exception as error:
                load.report.left_out["upstream's server"] = f"{type(error).__name__}: {error}"[:300]
    load.report.told["wrong"] = load.wrong
    load.report.show()
    if not arguments.no_record:
        load.report.append(RESULTS, head)
    return int(bool(load.wrong or load.report.left_out))


if __name__ == "__main__":
    sys.exit(main())
