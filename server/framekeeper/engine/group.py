"""A device group: starts its worker, proves it, serves with it, and acts on its end."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import structlog

from framekeeper import metrics
from framekeeper.database.pool import Database
from framekeeper.engine import compile_cache, devices, directories, leftovers, protocol
from framekeeper.engine.bring_up import StartFailed, bring_up
from framekeeper.engine.course import Course
from framekeeper.engine.end import End, Verdict
from framekeeper.engine.inquest import Inquest, verdict
from framekeeper.engine.link import Link
from framekeeper.engine.process import WorkerProcess
from framekeeper.engine.serving import Serving
from framekeeper.engine.status import EngineStatus
from framekeeper.jobs.engines import EngineState
from framekeeper.media.store import MediaStore
from framekeeper.profiles.facts import HostFacts
from framekeeper.profiles.schema import Profile
from framekeeper.settings import Settings

log = structlog.get_logger()

#: How long a worker may take to release its devices when it is asked nicely.
SHUTDOWN_SECONDS = 15.0
#: How long a hung worker may take to write its stacks and end, before it is ended.
HUNG_SECONDS = 5.0
#: How long a card may stay held after a process ended, before the next one is started all the same.
FREE_SECONDS = 60.0


class DeviceGroup:
    """One engine. `run` returns after `stop`; nothing of its processes is left then."""

    def __init__(
        self,
        *,
        settings: Settings,
        database: Database,
        profile: Profile,
        facts: HostFacts,
        group: int,
        python: Path,
        run_id: str,
        store: MediaStore,
    ) -> None:
        self.status = EngineStatus(
            settings=settings, database=database, profile=profile, group=group, run_id=run_id
        )
        self.course = Course(
            settings=settings,
            database=database,
            profile=profile,
            facts=facts,
            group=group,
            status=self.status,
        )
        self._settings = settings
        self._database = database
        self._facts = facts
        self._group = group
        self._python = python
        self._store = store
        self._process: WorkerProcess | None = None
        self._inquest: Inquest | None = None
        self._serving: Serving | None = None
        self._served = False
        self._stopping = asyncio.Event()
        self._log = log.bind(engine=self.status.id)

    @property
    def allocated_bytes(self) -> int | None:
        """What its worker's allocator held at the last step, None when that is not known."""
        return self._inquest.allocated_bytes if self._inquest and self._serving else None

    @property
    def working(self) -> set[str]:
        """Ids of the jobs that its worker makes."""
        return self._serving.working if self._serving is not None else set()

    def stop(self) -> None:
        """Take no more jobs; `run` ends when the running ones have ended or were abandoned."""
        self._stopping.set()

    def abandon(self) -> None:
        """Queue the running jobs again, without costing them a try."""
        if self._serving is not None:
            self._serving.abandon()

    def kill(self) -> None:
        """End the worker now, whatever it does."""
        if self._process is not None:
            self._process.kill("the supervisor was shut down")

    async def run(self) -> None:
        """Keep one worker alive until `stop`, or until the course says that a person is needed.

        To be run in a task of its own: every line that is logged in it names the engine.
        """
        structlog.contextvars.bind_contextvars(engine=self.status.id)
        self.status.begin()
        await self.course.load()
        watching = asyncio.create_task(self.course.watch(), name="course")
        while not self._stopping.is_set():
            await self._wait_for_devices()
            self.status.enter(EngineState.STARTING)
            planned = await self._run_process()
            if self._stopping.is_set():
                break
            self.status.restarts += 1
            metrics.engine_restarts.labels(engine=self.status.id).inc()
            if planned is None:
                await self._pause(await self.course.next_start())
            else:
                self._log.info("engine recycled", reason=planned)
                self.status.enter(EngineState.RESTARTING, detail=planned)
        watching.cancel()
        self.status.enter(EngineState.STOPPED)

    async def _pause(self, seconds: float | None) -> None:
        """Wait before the next start; None is until an operator has changed the course."""
        waiting = [asyncio.create_task(each) for each in (self._stopping.wait(), self.course.changed.wait())]
        await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for task in waiting:
            task.cancel()

    async def _wait_for_devices(self) -> None:
        wanted = self.course.launch.devices
        holding = await devices.wait_free(wanted, seconds=0)
        if not holding:
            return
        self.status.enter(EngineState.RESTARTING, detail=f"waiting for a card: {holding[0]} holds it")
        if left := await devices.wait_free(wanted, seconds=FREE_SECONDS):
            self._log.warning("starting beside a stranger", holders=[str(each) for each in left])

    # -- one process ----------------------------------------------------------------------------------------

    async def _run_process(self) -> str | None:
        """One process from start to end; returns the reason of a planned end, None after an unplanned one."""
        # Whatever has changed so far is in this launch: only a later change ends its process.
        self.course.changed.clear()
        launch = self.course.launch
        await asyncio.to_thread(directories.make, launch)
        environment = launch.environment | {
            leftovers.RUN: str(self._settings.run_directory),
            "FRAMEKEEPER_ENGINE": self.status.id,
        }
        log_file = self._settings.var.absolute() / "log" / f"engine-{self._group}.log"
        try:
            process = await WorkerProcess.start(self._python, environment, log_file)
        except OSError as error:
            self.course.cannot_start(f"the engine's Python could not be started ({error})")
            self._count_start("not_started")
            return None
        self._process = process
        self._served = False
        link = Link(process)
        self._inquest = Inquest(process, link)
        pump = asyncio.create_task(link.pump(), name="engine messages")
        planned: str | None = None
        try:
            if await self._start(link):
                planned = await self._serve(link)
            return planned
        finally:
            self._serving = None
            process.kill("the supervisor stopped it")
            await pump
            await asyncio.to_thread(directories.remove_temporary, launch)
            if planned is None and not self._stopping.is_set() and self._inquest.diagnosis is None:
                # It ended by itself, and no job has asked why.
                await self._examine(End(phase="idle"))

    async def _start(self, link: Link) -> bool:
        """Load and warm up; False when that failed or is not wanted any more."""
        started = time.monotonic()
        cache = self.course.launch.cache_directory
        found = await asyncio.to_thread(compile_cache.files, cache)
        # A start that is being stopped must not be waited for: it can take minutes.
        starting = asyncio.create_task(
            bring_up(link, self.course.launch, self._warm_up_directory(), self._on_phase)
        )
        stopping = asyncio.create_task(self._stopping.wait())
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not starting.done():
            starting.cancel()
            self._count_start("stopped")
            return False
        try:
            self.status.facts = starting.result()
        except StartFailed as error:
            await self._failed_start(link, error)
            return False
        seconds = time.monotonic() - started
        metrics.engine_start_seconds.observe(seconds)
        metrics.warm_up_seconds.observe(self.status.facts["warm_up"]["warm_up_seconds"])
        for number, count in enumerate(self.status.facts["load"].get("compiled_modules") or ()):
            metrics.compiled_modules.labels(self.status.id, str(number + 1)).set(count)
        made = await asyncio.to_thread(compile_cache.files, cache) - found
        metrics.compile_cache_files.labels(self.status.id, "found").set(len(found))
        metrics.compile_cache_files.labels(self.status.id, "made").set(len(made))
        self._count_start("ready")
        self._log.info("engine ready", seconds=round(seconds, 1), rung=self.course.launch.rung)
        self._served = True
        await self.course.ready(self.status.facts["load"])
        return True

    async def _failed_start(self, link: Link, error: StartFailed) -> None:
        self._log.error("engine did not start", reason=str(error))
        link.condemn(str(error), hung=error.hung)
        await asyncio.wait({asyncio.create_task(link.process.wait())}, timeout=HUNG_SECONDS)
        link.process.kill(str(error))
        warming = error.phase not in LOADING
        self._count_start("warm_up_failed" if warming else "load_failed")
        deadline = ("warm_up" if warming else "load") if error.hung else None
        # Whatever the warm-up was at: its phases are not those of anybody's job.
        phase = "warming" if warming else error.phase
        await self._examine(End(phase=phase, deadline=deadline, failure=error.failure))  # type: ignore[arg-type]

    def _count_start(self, result: str) -> None:
        metrics.engine_starts.labels(engine=self.status.id, result=result).inc()

    def _on_phase(self, phase: str) -> None:
        state = EngineState.LOADING if phase in LOADING else EngineState.WARMING
        self.status.enter(state, phase=phase)

    def _warm_up_directory(self) -> Path:
        return self._settings.run_directory / f"group-{self._group}" / "warm-up"

    async def _serve(self, link: Link) -> str | None:
        self._serving = serving = Serving(
            link,
            course=self.course,
            settings=self._settings,
            database=self._database,
            store=self._store,
            status=self.status,
            examine=self._examine,
            memory_limit=self._facts.memory_bytes,
        )
        changing = asyncio.create_task(self._close_when_changed(serving))
        await serving.run(self._stopping)
        changing.cancel()
        if link.gone:
            return None
        link.send(protocol.Shutdown())
        await asyncio.wait({asyncio.create_task(link.process.wait())}, timeout=SHUTDOWN_SECONDS)
        return serving.recycle or "the supervisor is stopping"

    async def _close_when_changed(self, serving: Serving) -> None:
        await self.course.changed.wait()
        self.course.changed.clear()
        serving.close("the engine goes to another rung")

    # -- its end --------------------------------------------------------------------------------------------

    async def _examine(self, end: End) -> Verdict:
        """Name the cause of this process's end, record it, decide; asked again it gives the same."""
        inquest = self._inquest
        assert inquest is not None
        diagnosis = await inquest.look(end)
        assert inquest.exit is not None
        incident, decision = await self.course.record(inquest, served=self._served)
        return verdict(diagnosis, incident, decision, end)


#: Phases before there is anything to warm up.
LOADING = ("importing", "loading", "dummy_run")
