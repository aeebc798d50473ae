"""A soak from start to end: the real programs, random faults, random clients, then every check."""

from __future__ import annotations

import random
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from framekeeper.database import embedded
from framekeeper.database.migrate import migrate
from soak import checks, script, watch
from soak.attendant import Attendant
from soak.breakage import Breaker, plan
from soak.clients import Client
from soak.figures import Report
from soak.ledger import Ledger
from system import System as PlainSystem
from system import free_port, wait_for

CLIENTS = 5
GROUPS = 2
#: Seconds that open jobs may take to end once faults and clients have stopped.
SETTLE_SECONDS = 180
#: An end that needs the operator takes as long as the operator; counted apart.
STOPPED = "stop"


class System(PlainSystem):
    """A system whose programs have a temporary directory of their own, so that what they leave is found."""

    def __init__(self, temporary: Path, directory: Path, database_url: str, **settings: Any) -> None:
        super().__init__(directory, database_url, **settings)
        self._temporary = temporary

    def environment(self, **more: Any) -> dict[str, str]:
        """As of every system, and TMPDIR."""
        return super().environment(**more) | {"TMPDIR": str(self._temporary)}


class Soak:
    """One run in a directory that every account can reach (the embedded server of root has its own)."""

    def __init__(self, home: Path, *, seconds: float, seed: int) -> None:
        self.home = home
        self.report = Report(seed=seed, seconds=seconds)
        self._seed = seed
        self._seconds = seconds
        self._database = home / "postgres"
        self._ledger = Ledger()
        self._ports: list[int] = []
        self._stopping = threading.Event()
        temporary = home / "tmp"
        temporary.mkdir()
        profile = script.write_profile(home / "profiles", seed)
        self._system = System(
            temporary,
            home / "system",
            embedded.database_url(self._database),
            profile=profile,
            engine_python=sys.executable,
            engine_groups=GROUPS,
            max_attempts=4,
            drain_seconds=4,
            rung_quiet_seconds=20,
            min_free_bytes=0,
        )
        acts = plan(seconds, random.Random(f"{seed}/plan"))
        self._breaker = Breaker(
            self._system,
            self._database,
            self._ledger,
            acts,
            random.Random(f"{seed}/breaker"),
            self._stopping,
        )
        self._attended = threading.Event()
        self._attendant = Attendant(self._system, self._breaker, self._ledger, self._attended)

    def run(self) -> Report:
        """Run it; the report tells what did not hold. Raises AssertionError when it could not be run."""
        log = self._database.with_name("postgres.log")
        try:
            with ExitStack() as stack:
                stack.enter_context(embedded.embedded_postgres(self._database, log_file=log))
                self._begin()
                self._act()
                self._settle()
                self._close()
                self._judge()
            left = checks.remains(self._system, self._ports, self._database, self._attendant.seen.segments)
            self.report.problems += left
            self.report.tell(
                "left behind", "processes, locks, sockets, ports, shared memory, files", len(left)
            )
        finally:
            self._stopping.set()
            self._attended.set()
            self._system.abandon()
        return self.report

    def _begin(self) -> None:
        migrate(self._system.database_url)
        watch.begin(self._system.database_url)
        self._system.start_supervisor()
        for processes in (2, 1):
            port = free_port()
            self._ports.append(port)
            self._system.start_gateway(port, gateway_processes=processes)
        self._attendant.start()

        def ready() -> bool:
            return bool(self._system.supervisor_says()["status"] == "ready")

        wait_for("an engine is ready", ready, 120)

    def _act(self) -> None:
        began = time.monotonic()
        urls = [f"http://127.0.0.1:{port}" for port in self._ports]
        clients = [Client(n, self._seed, urls, self._ledger, self._stopping) for n in range(CLIENTS)]
        for thread in (self._breaker, *clients):
            thread.start()
        while (left := began + self._seconds - time.monotonic()) > 0:
            time.sleep(min(left, 30))
            says = self._system.supervisor_says()
            states = ", ".join(f"{each['id']} {each['state']}" for each in says["engines"])
            accepted, problems = len(self._ledger.wishes), len(self._ledger.problems)
            print(
                f"{time.monotonic() - began:4.0f} s: {accepted} accepted, {self._ledger.open()} open, "
                f"{problems} violations; {states or says['status']}",
                flush=True,
            )
        self._stopping.set()
        for thread in (self._breaker, *clients):
            thread.join(90)
            if thread.is_alive():
                self._ledger.complain(f"{thread.name} hangs")

    def _settle(self) -> None:
        """No fault any more: everything that was accepted has to end."""
        script.end_faults(self.home / "profiles")
        self._breaker.restart_supervisor()
        began = time.monotonic()
        open_jobs = "SELECT id, state, queue FROM videos WHERE state IN ('queued', 'in_progress')"

        def settled() -> bool:
            return not watch.rows(self._system.database_url, open_jobs)

        try:
            wait_for("every job is final", settled, SETTLE_SECONDS, every=0.5)
        except AssertionError as error:
            self._ledger.complain(f"{error}: {watch.rows(self._system.database_url, open_jobs)}")
        self.report.tell("jobs", "seconds until the last was final", round(time.monotonic() - began, 1))

    def _close(self) -> None:
        self._attended.set()
        self._attendant.join(90)
        self._system.stop_gateways()
        self._breaker.stop_supervisor()

    def _judge(self) -> None:
        url, ledger = self._system.database_url, self._ledger
        videos = watch.rows(url, "SELECT * FROM videos")
        problems = self.report.problems
        problems += ledger.problems
        problems += checks.answers(ledger, self._breaker.damage)
        problems += checks.changes(url)
        problems += checks.rows(ledger, videos)
        problems += checks.files(self._system.media, videos)
        self._tell_jobs()
        self._tell_engines()
        self._tell_requests()

    def _tell_jobs(self) -> None:
        url, report, ledger = self._system.database_url, self.report, self._ledger
        known = set(ledger.wishes)
        videos = watch.rows(url, "SELECT id, state, error_code, attempt, tries FROM videos")
        report.tell("jobs", "accepted", len(known))
        lost = [
            row for row in watch.rows(url, "SELECT DISTINCT id FROM soak_changes") if row["id"] not in known
        ]
        report.tell("jobs", "accepted, answer lost", len(lost))
        report.tell("jobs", "deleted", sum(wish.deleted for wish in ledger.wishes.values()))
        report.count("jobs", (f"{row['state']} {row['error_code'] or ''}".strip() for row in videos))
        published = watch.rows(url, "SELECT count(*) AS n FROM soak_changes WHERE after = 'completed'")
        report.tell("jobs", "published", published[0]["n"])
        report.count("attempts of final jobs", (f"{row['attempt']}" for row in videos))
        queue = watch.rows(url, "SELECT status::text, count(*) AS n FROM procrastinate_jobs GROUP BY 1")
        report.count("rows left in the queue", {row["status"]: row["n"] for row in queue})
        if alive := [row for row in queue if row["status"] in ("todo", "doing")]:
            report.problems.append(f"wake-ups are left in the queue: {alive}")

    def _tell_engines(self) -> None:
        url, report, damage = self._system.database_url, self.report, self._breaker.damage
        incidents = watch.rows(
            url,
            "SELECT signature, record->>'action' AS action, record->>'reason' AS reason, ready_again_seconds"
            " FROM incidents",
        )
        report.tell("incidents", "all", len(incidents))
        report.count("incidents by signature", (row["signature"] for row in incidents))
        report.count("decisions", (row["action"] for row in incidents))
        log = (self._system.directory / "supervisor.log").read_text(errors="replace")
        report.tell("engines", "starts that got ready", log.count("engine ready"))
        for name, chosen in (("by itself", False), ("with the operator", True)):
            seconds = [
                row["ready_again_seconds"]
                for row in incidents
                if row["ready_again_seconds"] is not None and (row["action"] == STOPPED) is chosen
            ]
            report.spread("engines", f"seconds from an end to ready again, {name}", seconds)
        report.count("operator's resets", self._attendant.seen.resets)
        report.count("killed and restarted", damage.counted)
        report.spread("engines", "seconds of a supervisor's stop", damage.stops)
        self._tell_memory()

    def _tell_memory(self) -> None:
        lives = list(self._attendant.seen.supervisors.values())
        if not lives:
            return
        mib = 2**20
        longest = max(lives, key=lambda life: life.seconds)
        self.report.tell("supervisor's memory, MiB", "first process, when ready", lives[0].first // mib)
        self.report.tell("supervisor's memory, MiB", "last process, at the end", lives[-1].last // mib)
        name = f"longest life ({longest.seconds:.0f} s), growth"
        self.report.tell("supervisor's memory, MiB", name, round((longest.last - longest.first) / mib, 1))

    def _tell_requests(self) -> None:
        for route in ("POST", "GET one", "cancel", "DELETE", "content"):
            self.report.spread("seconds of requests", route, self._ledger.seconds(route))
        self.report.tell("seconds of requests", "downloads", self._ledger.downloads)
        self.report.count("HTTP", self._ledger.statuses())
