"""A device group: starts its worker, proves it, feeds it jobs, and starts the next one when it ends."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import structlog
from procrastinate.worker import Worker as QueueWorker

from framekeeper import metrics
from framekeeper.database.pool import Database
from framekeeper.engine import leftovers, protocol
from framekeeper.engine.attempt import Attempt, persist
from framekeeper.engine.bring_up import StartFailed, bring_up
from framekeeper.engine.link import Link
from framekeeper.engine.process import WorkerProcess
from framekeeper.errors import DatabaseUnavailable, EngineFailed
from framekeeper.jobs import engines, settle
from framekeeper.jobs.engines import EngineState
from framekeeper.jobs.shape import admitted_queues
from framekeeper.jobs.video import Video
from framekeeper.media.store import MediaStore
from framekeeper.profiles.launch import Launch
from framekeeper.profiles.schema import parse_size
from framekeeper.settings import Settings

log = structlog.get_logger()

#: Seconds before the next start, by the number of starts in a row that never got ready.
BACKOFF = (0.0, 1.0, 5.0, 15.0, 30.0)
#: So many failed starts in a row are called `failed`; the next try then waits longer.
FAILED_AFTER = len(BACKOFF)
FAILED_BACKOFF = 120.0
#: How long a worker may take to release its devices when it is asked nicely.
SHUTDOWN_SECONDS = 15.0
#: How long a hung worker may take to write its stacks and end, before it is ended.
HUNG_SECONDS = 5.0


class DeviceGroup:
    """One engine. `run` returns after `stop`; nothing of its processes is left then."""

    def __init__(
        self,
        *,
        settings: Settings,
        database: Database,
        launch: Launch,
        python: Path,
        run_id: str,
        store: MediaStore,
    ) -> None:
        self.id = f"{settings.host_id}/{launch.group}"
        self.launch = launch
        self.state = EngineState.STARTING
        self.phase: str | None = None
        self.detail: str | None = None
        self.since = time.monotonic()
        self.restarts = 0
        self.facts: dict[str, Any] = {}
        self.replaced = asyncio.Event()
        self._settings = settings
        self._database = database
        self._python = python
        self._run_id = run_id
        self._store = store
        self._process: WorkerProcess | None = None
        self._link: Link | None = None
        self._attempts: set[Attempt] = set()
        self._following: set[asyncio.Task[None]] = set()
        self._stopping = asyncio.Event()
        self._changed = asyncio.Event()
        self._failures = 0
        self._log = log.bind(engine=self.id)

    # -- what others see ------------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """How the engine is, for /health/startup."""
        return {
            "id": self.id,
            "model": self.launch.profile.serves,
            "profile": self.launch.profile.name,
            "state": self.state.value,
            "phase": self.phase,
            "seconds": round(time.monotonic() - self.since, 1),
            "detail": self.detail,
            "restarts": self.restarts,
        }

    async def register(self) -> None:
        """Enter the engine into the database, under this run of the supervisor."""
        profile = self.launch.profile
        await persist(
            lambda: engines.register(
                self._database,
                engine_id=self.id,
                host=self._settings.host_id,
                run_id=self._run_id,
                model=profile.serves,
                profile=profile.name,
                runtime=profile.runtime,
                admits=profile.admits.model_dump(mode="json"),
                defaults=profile.defaults.model_dump(mode="json"),
            )
        )

    async def publish(self) -> None:
        """Write the state to the database, as heartbeat too. Raises DatabaseUnavailable."""
        mine = await engines.report(
            self._database,
            engine_id=self.id,
            run_id=self._run_id,
            state=self.state,
            phase=self.phase,
            detail=self.detail,
            restarts=self.restarts,
            facts=self.facts or None,
        )
        if not mine:
            self.replaced.set()

    async def publish_changes(self, every_seconds: float) -> None:
        """Publish each change at once, and the heartbeat every so often, for ever."""
        while True:
            self._changed.clear()
            try:
                await self.publish()
            except DatabaseUnavailable:
                await asyncio.sleep(1)
                continue
            try:
                await asyncio.wait_for(self._changed.wait(), every_seconds)
            except TimeoutError:
                continue

    def _enter(self, state: EngineState, *, phase: str | None = None, detail: str | None = None) -> None:
        if (state, phase) != (self.state, self.phase):
            self.since = time.monotonic()
        self.state, self.phase, self.detail = state, phase, detail
        for each in EngineState:
            metrics.engine_state.labels(engine=self.id, state=each.value).set(each is state)
        self._changed.set()

    # -- life of the processes ------------------------------------------------------------------------------

    def stop(self) -> None:
        """Take no more jobs; `run` ends when the running ones have ended or were abandoned."""
        self._stopping.set()

    def abandon(self) -> None:
        """Queue the running jobs again, without costing them a try."""
        for attempt in list(self._attempts):
            attempt.abandon()

    def kill(self) -> None:
        """End the worker now, whatever it does."""
        if self._process is not None:
            self._process.kill("the supervisor was shut down")

    async def run(self) -> None:
        """Keep one worker alive until `stop`."""
        while not self._stopping.is_set():
            self._enter(EngineState.STARTING)
            reason = await self._run_process()
            if self._stopping.is_set():
                break
            self.restarts += 1
            metrics.engine_restarts.labels(engine=self.id).inc()
            failed = self._failures >= FAILED_AFTER
            delay = FAILED_BACKOFF if failed else BACKOFF[self._failures]
            self._log.error("engine ended", reason=reason, failed_starts=self._failures, next_start_in=delay)
            state = EngineState.FAILED if failed else EngineState.RESTARTING
            self._enter(state, detail=f"{reason}; next start in {delay:g} s" if delay else reason)
            await self._pause(delay)
        self._enter(EngineState.STOPPED)

    async def _pause(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._stopping.wait(), seconds)
        except TimeoutError:
            return

    async def _run_process(self) -> str:
        """One process from start to end; returns why it ended."""
        for directory in self.launch.directories:
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        environment = self.launch.environment | {
            leftovers.RUN: str(self._settings.run_directory),
            "FRAMEKEEPER_ENGINE": self.id,
        }
        log_file = self._settings.var.absolute() / "log" / f"engine-{self.launch.group}.log"
        started = time.monotonic()
        try:
            process = await WorkerProcess.start(self._python, environment, log_file)
        except OSError as error:
            self._failures += 1
            return f"the engine's Python could not be started ({error})"
        self._process = process
        link = Link(process)
        pump = asyncio.create_task(link.pump(), name="engine messages")
        reason: str | None = None
        try:
            # A start that is being stopped must not be waited for: it can take minutes.
            starting = asyncio.create_task(
                bring_up(link, self.launch, self._warm_up_directory(), self._on_start)
            )
            stopping = asyncio.create_task(self._stopping.wait())
            await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            if starting.done():
                self.facts = starting.result()
                self._failures = 0
                metrics.engine_start_seconds.observe(time.monotonic() - started)
                self._log.info("engine ready", seconds=round(time.monotonic() - started, 1))
                await self._serve(link)
            else:
                starting.cancel()
        except StartFailed as error:
            self._failures += 1
            reason = str(error)
            if error.hung:
                process.kill(reason, hung=True)
                await asyncio.wait({asyncio.create_task(process.wait())}, timeout=HUNG_SECONDS)
            self._log.error("engine did not start", reason=reason, last_lines=list(process.tail)[-15:])
        finally:
            self._link = None
            process.kill(reason or "the supervisor stopped it")
            await pump
        assert link.exit is not None
        return reason or str(link.exit)

    def _on_start(self, phase: str) -> None:
        warming = phase not in ("importing", "loading", "dummy_run")
        state = EngineState.WARMING if warming else EngineState.LOADING
        self._enter(state, phase=phase)

    def _warm_up_directory(self) -> Path:
        return self._settings.run_directory / f"group-{self.launch.group}" / "warm-up"

    # -- jobs -----------------------------------------------------------------------------------------------

    async def _serve(self, link: Link) -> None:
        """Fetch jobs for this worker until it ends or the supervisor stops."""
        self._link = link
        self._idle()
        ended = asyncio.create_task(self._until_ended(link))
        while not ended.done():
            queue = self._queue_worker()
            fetching = asyncio.create_task(queue.run(), name="queue worker")
            await asyncio.wait({ended, fetching}, return_when=asyncio.FIRST_COMPLETED)
            queue.stop()
            try:
                await fetching
            except Exception as error:  # the database is away: the engine waits for it, warm
                self._log.warning("queue unreachable", error=str(error).splitlines()[0])
                await asyncio.wait({ended}, timeout=2)
        await self._drain()
        if link.exit is None:
            link.send(protocol.Shutdown())
            await asyncio.wait({asyncio.create_task(link.process.wait())}, timeout=SHUTDOWN_SECONDS)

    async def _until_ended(self, link: Link) -> None:
        exit_ = asyncio.create_task(link.process.wait())
        stop = asyncio.create_task(self._stopping.wait())
        await asyncio.wait({exit_, stop}, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()

    async def _drain(self) -> None:
        if self._following:
            await asyncio.wait(self._following)

    def _queue_worker(self) -> QueueWorker:
        admits = self.launch.profile.admits
        width, height = parse_size(admits.size)
        return QueueWorker(
            app=self._database.queue,
            queues=admitted_queues(self.launch.profile.serves, width, height, admits.num_frames),
            name=self.id,
            concurrency=1,
            delete_jobs="always",  # the row of the video is the record
            additional_context={"group": self},
            install_signal_handlers=False,
            update_heartbeat_interval=min(10.0, self._settings.stale_seconds / 3),
            stalled_worker_timeout=self._settings.stale_seconds,
        )

    async def make(self, video_id: str) -> None:
        """The queue's task: claim the job and work on it until the engine is free for the next one."""
        link = self._link
        if link is None or link.gone:  # the queue gives the wake-up to another engine
            raise EngineFailed("The engine ended before it could claim the job.")
        video = await settle.claim(self._database, video_id, engine_id=self.id, run_id=self._run_id)
        if video is None:
            return
        if not self._admits(video):
            error = EngineFailed("This engine does not admit the job's shape at present.")
            await settle.requeue(
                self._database,
                video,
                error,
                max_attempts=self._settings.max_attempts,
                delay_seconds=5,
                counts=False,
            )
            return
        attempt = Attempt(
            video,
            link=link,
            database=self._database,
            store=self._store,
            deadlines=self.launch.profile.deadlines,
            max_attempts=self._settings.max_attempts,
        )
        self._attempts.add(attempt)
        following = asyncio.create_task(attempt.follow(), name=f"attempt {video.id}/{video.attempt}")
        self._following.add(following)
        following.add_done_callback(lambda task: self._finished(task, attempt))
        self._enter(EngineState.BUSY)
        released = asyncio.create_task(attempt.released.wait())
        try:
            await asyncio.wait({following, released}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:  # the queue's abort: the owner wants it stopped
            attempt.stop()
            await asyncio.wait({following, released}, return_when=asyncio.FIRST_COMPLETED)
            raise
        finally:
            released.cancel()
            self._idle()

    def _admits(self, video: Video) -> bool:
        admits = self.launch.profile.admits
        request = video.request
        return request.width * request.height <= admits.area and request.num_frames <= admits.num_frames

    def _finished(self, task: asyncio.Task[None], attempt: Attempt) -> None:
        self._following.discard(task)
        self._attempts.discard(attempt)
        if not task.cancelled() and task.exception() is not None:
            self._log.error("attempt ended in an error of ours", exc_info=task.exception())

    def _idle(self) -> None:
        if self._link is not None and not self._link.gone:
            degraded = self.launch.rung > 0
            self._enter(
                EngineState.DEGRADED if degraded else EngineState.READY,
                detail=f"on fallback rung {self.launch.rung_name}" if degraded else None,
            )
