"""Measures the whole real system on this machine, and vllm-omni's own server beside it.

    python bench/serving.py [--bare] [--quick] [--no-peer] [--no-record]

Real vllm-omni on the CPU with the small checkpoint, real PostgreSQL, one gateway of two processes. Prints one
table and appends one JSON line to bench/results/serving.jsonl. `--bare` also runs `make run` in a fresh clone
(some minutes, 3 GB in the temporary directory). Exit status 1 when something could not be measured; the line
then says what and why.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(PROJECT / "tests"))

import bare  # noqa: E402
import footprint  # noqa: E402
import latency  # noqa: E402
import machine  # noqa: E402
import peer  # noqa: E402
import recovery  # noqa: E402
from framekeeper.database.embedded import embedded_postgres  # noqa: E402
from framekeeper.database.migrate import migrate  # noqa: E402
from report import OURS, PEER, Report  # noqa: E402
from system import System  # noqa: E402
from videos import LARGE, SMALL, Videos  # noqa: E402

RESULTS = PROJECT / "bench" / "results" / "serving.jsonl"
RUNTIME = PROJECT / ".runtimes" / "omni-0.30-cpu" / "bin" / "python"
PROFILE = "cpu-tiny"

START = "start"
UNDER_LOAD = f"requests by {latency.CLIENTS} clients while a job runs"
RECOVERY = "recovery from kill -9 in the middle of a job"
MEMORY = "memory (proportional set size)"
BARE = "make run on a bare checkout"


@dataclass(frozen=True)
class Plan:
    """How much is measured. `long_jobs` of about 3 s each keep the engine busy under the requests."""

    small_jobs: int = 20
    large_jobs: int = 5
    submits: int = 200
    reads: int = 1000
    long_jobs: int = 8
    kills: int = 3
    watch_seconds: float = 60.0

    def shapes(self) -> tuple[tuple[str, dict[str, Any], int], ...]:
        """Name, fields and number of jobs of each shape."""
        return (
            ("jobs of 64x64, 9 frames, 6 steps", SMALL, self.small_jobs),
            ("jobs of 128x128, 49 frames, 50 steps", LARGE, self.large_jobs),
        )


QUICK = Plan(small_jobs=5, large_jobs=2, submits=40, reads=200, long_jobs=3, kills=1, watch_seconds=15)


class Bench:
    """One run in a temporary directory: parts in order, each of which may fail without ending the rest."""

    def __init__(self, plan: Plan, home: Path) -> None:
        self.plan = plan
        self.home = home
        self.model = home / "wan2.2-t2v-tiny"
        self.report = Report()
        self.versions = machine.versions()

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Say what is measured, and keep the reason when it cannot be."""
        print(f"{time.strftime('%H:%M:%S')} {name}", flush=True)
        try:
            yield
        except Exception as error:
            print(f"could not measure {name}: {error}", file=sys.stderr, flush=True)
            words = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
            self.report.left_out[name] = words.replace(str(self.home), "TMP").replace(str(PROJECT), ".")[:300]

    # -- ours -----------------------------------------------------------------------------------------------

    def bare_checkout(self) -> None:
        """From `make run` to the first video."""
        directory = self.home / "bare"
        directory.mkdir(mode=0o755)
        with self.part(BARE):
            found = bare.measure(directory)
            for stage, seconds in found.stages.items():
                self.report.add(BARE, stage, "s", seconds)
            self.report.add(BARE, "in all, to the downloaded video", "s", found.total)
            self.report.add(BARE, "clean end after Ctrl-C", "s", found.stop)
        shutil.rmtree(directory, ignore_errors=True)

    def framekeeper(self) -> None:
        """All that is measured on a running Framekeeper."""
        postgres = self.home / "postgres"
        with self.part("framekeeper"), embedded_postgres(postgres) as url:
            migrate(url)
            system = System(
                self.home / "system",
                url,
                profile=PROFILE,
                model=self.model,
                engine_python=RUNTIME,
                gateway_processes=2,
                stale_seconds=30,  # as shipped; the tests' is shorter
            )
            try:
                began = time.monotonic()
                system.start_supervisor()
                gateway = system.start_gateway()
                system.wait_ready()
                self.report.add(START, "processes started → ready for a job", "s", time.monotonic() - began)
                self._running(system, gateway, url, postgres)
                system.close()
            finally:
                system.abandon()

    def _running(self, system: System, gateway: str, url: str, postgres: Path) -> None:
        with self.part("versions of the engine"), Videos(gateway) as videos:
            self.versions |= videos.engine_versions()
        with self.part("memory at rest"):
            self._memory("at rest", footprint.of_system(system, postgres))
        for name, fields, count in self.plan.shapes():
            with self.part(f"{name}, one by one"):
                self._one_by_one(gateway, url, name, fields, count)
            with self.part(f"{name}, queued together"):
                ids, seconds = latency.queued_together(gateway, fields, count)
                self.report.add(name, "queued together: seconds a job", "s", seconds)
                gaps = latency.gaps(latency.rows(url, ids))
                self.report.add(name, "engine idle between two queued jobs", "ms", _ms(gaps))
        with self.part(UNDER_LOAD):
            self._under_load(gateway, OURS)
        kills: tuple[tuple[str, Callable[[System, str], recovery.Recovery]], ...] = (
            ("worker", recovery.worker_killed),
            ("supervisor", recovery.supervisor_killed),
        )
        for name, kill in kills:
            with self.part(f"kill -9 of the {name}"):
                found = [kill(system, gateway) for _ in range(self.plan.kills)]
                self.report.add(RECOVERY, f"{name} → ready again", "s", [each.ready for each in found])
                self.report.add(
                    RECOVERY, f"{name} → the same job completed", "s", [each.completed for each in found]
                )
        with self.part("memory after the run"):
            self._memory("after the run", footprint.of_system(system, postgres))

    def _one_by_one(self, gateway: str, url: str, name: str, fields: dict[str, Any], count: int) -> None:
        jobs = latency.one_by_one(gateway, fields, count)
        rows = {row.id: row for row in latency.rows(url, [job.id for job in jobs])}
        pairs = [(job.seconds, rows[job.id]) for job in jobs]
        parts = {
            "POST → completed, 20 ms polling": [seconds for seconds, _ in pairs],
            "the engine's own generation": [row.generation for _, row in pairs],
            "overhead: POST → completed less generation": [s - row.generation for s, row in pairs],
            "  of it: accepted → started": [row.started - row.created for _, row in pairs],
            "  of it: encoding and storing": [float(row.facts["encode_seconds"]) for _, row in pairs],
        }
        for part, values in parts.items():
            self.report.add(name, part, "ms", _ms(values))

    def _under_load(self, url: str, side: str) -> None:
        plan = self.plan
        found = latency.under_load(url, submits=plan.submits, reads=plan.reads, long_jobs=plan.long_jobs)
        for name, values in (
            ("GET status", found.reads),
            ("POST", found.submits),
            ("DELETE of a queued job", found.deletes),
        ):
            self.report.add(UNDER_LOAD, name, "ms", _ms(values), side=side)
        if not found.busy:
            self.report.told[f"{side}, {UNDER_LOAD}"] = "the last long job ended before the last request"

    def _memory(self, when: str, figures: dict[str, float], side: str = OURS) -> None:
        for name, mib in figures.items():
            self.report.add(MEMORY, f"{name}, {when}", "MiB", mib, side=side)
        self.report.add(MEMORY, f"all, {when}", "MiB", sum(figures.values()), side=side)

    # -- upstream's -----------------------------------------------------------------------------------------

    def upstream(self, given: Path | None) -> None:
        """The same on vllm-omni's own server; `given` is an environment made before."""
        with self.part("upstream's server"):
            python = given or peer.environment(RUNTIME, self.home / "peer")
            with peer.serving(python, self.model, self.home / "upstream") as server:
                self._upstream_running(server)
                interrupted, words = peer.killed_whole(server)
            # In the same directory, so that it could know the jobs of the one before.
            with peer.serving(python, self.model, self.home / "upstream", executor="mp") as server:
                words += f"; started again, {peer.job_after_restart(server, interrupted)}"
                self.report.told["upstream, default executor (engine in the API process), kill -9"] = words
                self.report.told["upstream, mp executor, kill -9 of its worker"] = peer.killed_worker(
                    server, watch=self.plan.watch_seconds
                )

    def _upstream_running(self, server: peer.Peer) -> None:
        self.report.add(START, "processes started → ready for a job", "s", server.start_seconds, side=PEER)
        self._memory("at rest", {"server and engine": peer.memory(server)}, PEER)
        for name, fields, count in self.plan.shapes():
            with self.part(f"upstream, {name}"):
                jobs = latency.one_by_one(server.url, fields, count)
                own = [float(job.video["stage_durations"]["stage_0_gen_ms"]) / 1e3 for job in jobs]
                over = [job.seconds - generation for job, generation in zip(jobs, own, strict=True)]
                for part, values in (
                    ("POST → completed, 20 ms polling", [job.seconds for job in jobs]),
                    ("the engine's own generation", own),
                    ("overhead: POST → completed less generation", over),
                ):
                    self.report.add(name, part, "ms", _ms(values), side=PEER)
                _, seconds = latency.queued_together(server.url, fields, count)
                self.report.add(name, "queued together: seconds a job", "s", seconds, side=PEER)
        with self.part(f"upstream, {UNDER_LOAD}"):
            self._under_load(server.url, PEER)
        self._memory("after the run", {"server and engine": peer.memory(server)}, PEER)


def _ms(seconds: list[float]) -> list[float]:
    return [each * 1e3 for each in seconds]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--bare", action="store_true", help="also time `make run` in a fresh clone")
    parser.add_argument("--quick", action="store_true", help="a short form, to see that everything works")
    parser.add_argument("--no-peer", action="store_true", help="leave out vllm-omni's own server")
    parser.add_argument("--no-record", action="store_true", help="do not append to the results")
    parser.add_argument(
        "--peer-python", type=Path, help="Python of an environment made before (see bench/README.md)"
    )
    return parser.parse_args()


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


def main() -> int:
    """Exit status as in the module's docstring."""
    arguments = _arguments()
    if not RUNTIME.exists():
        print("the CPU runtime is not installed: run `make runtime`", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, _interrupt)  # so that an end from outside leaves no process either
    head = machine.revision(PROJECT) | {"quick": arguments.quick, "machine": machine.facts()}
    head["load_before"] = machine.load()
    head["pip_cache_mib"] = machine.pip_cache_mib() if arguments.bare else None
    began = time.monotonic()
    # Not private: root's PostgreSQL runs as another account and has to reach its directory.
    with tempfile.TemporaryDirectory(prefix="framekeeper-bench-") as temporary:
        home = Path(temporary)
        home.chmod(0o755)
        bench = Bench(QUICK if arguments.quick else Plan(), home)
        if arguments.bare:
            bench.bare_checkout()
        subprocess.run([RUNTIME, "-m", "framekeeper.checkpoint.tiny", bench.model], check=True)
        bench.framekeeper()
        if not arguments.no_peer:
            bench.upstream(arguments.peer_python)
    head |= {"versions": bench.versions, "run_seconds": round(time.monotonic() - began)}
    bench.report.show()
    print(f"load before: {head['load_before']}; the run took {head['run_seconds']} s")
    if not arguments.no_record:
        bench.report.append(RESULTS, head)
    return 1 if bench.report.left_out else 0


if __name__ == "__main__":
    sys.exit(main())
