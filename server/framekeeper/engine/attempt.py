"""One attempt at one job on one worker: from the first message to the settled row."""

from __future__ import annotations

import asyncio
import contextlib
import time
from datetime import UTC, datetime

import structlog

from framekeeper import metrics
from framekeeper.database.pool import Database
from framekeeper.engine import protocol
from framekeeper.engine.end import Deadline, End, Examine, Verdict
from framekeeper.engine.exit import Exit
from framekeeper.engine.link import Link
from framekeeper.engine.patience import Patience
from framekeeper.engine.persist import persist
from framekeeper.engine.step_clock import StepClock
from framekeeper.errors import (
    DatabaseUnavailable,
    DeadlineExceeded,
    EngineFailed,
    FramekeeperError,
    FramesInvalid,
    RequestRefusedByEngine,
    StorageFailed,
)
from framekeeper.jobs import measured, settle
from framekeeper.jobs.shape import shape_class
from framekeeper.jobs.video import Video, VideoState
from framekeeper.media.store import MediaStore
from framekeeper.profiles.schema import Deadlines
from framekeeper.settings import Settings

log = structlog.get_logger()

#: Least seconds between two progress writes of one job.
REPORT_SECONDS = 0.1
#: A job whose file could not be written waits this long before its next attempt.
STORAGE_SECONDS = 15.0


class Attempt:
    """`follow` runs it; `released` is set when the engine can take the next job."""

    def __init__(
        self,
        video: Video,
        *,
        link: Link,
        database: Database,
        store: MediaStore,
        deadlines: Deadlines,
        settings: Settings,
        examine: Examine,
        profile: str,
        rung: int = 0,
        lead_seconds: float = 0.0,
    ) -> None:
        self.video = video
        self.released = asyncio.Event()
        #: Resident and allocated bytes of the worker after the job, once it is known.
        self.memory: tuple[int, int] | None = None
        self._link = link
        self._database = database
        self._store = store
        self._deadlines = deadlines
        self._settings = settings
        self._examine = examine
        self._missed: Deadline | None = None
        self._phase: str = "starting"
        self._step = 0
        self._steps = video.steps
        self._abandoned = False
        self._stop_sent = False
        #: Whether it is being stopped because its deadline is over.
        self._late = False
        self._clock = StepClock(deadlines.step_seconds)
        self._patience = Patience()
        self._changed = asyncio.Event()
        self._phase_started = self._started = time.monotonic()
        request = video.request
        shape = shape_class(request.width, request.height, request.num_frames)
        self._rung = rung
        #: Seconds that the engine was free before this job, though it waited: each job loses some.
        self._lead_seconds = lead_seconds
        #: Seconds from the start until the engine was free for the next job.
        self._taken: float | None = None
        self._labels = {"profile": profile, "shape_class": str(shape)}

    def stop(self) -> None:
        """Ask the worker to stop before its next step, because the owner wants it so."""
        if not self._stop_sent:
            self._stop_sent = True
            self._link.send(protocol.Cancel(job=self.video.id, attempt=self.video.attempt))

    def abandon(self) -> None:
        """Ask the worker to stop because we are shutting down; the job is queued again and loses no try."""
        self._abandoned = True
        self.stop()

    async def follow(self) -> None:
        """Send the job, keep its row up to date, settle it. Raises only when cancelled.

        To be run in a task of its own: every line that is logged in it names the job.
        """
        structlog.contextvars.bind_contextvars(
            video_id=self.video.id, attempt=self.video.attempt, request_id=self.video.request_id
        )
        if self.video.attempt == 1 and self.video.started_at is not None:
            waited = (self.video.started_at - self.video.created_at).total_seconds()
            metrics.queue_wait_seconds.labels(self._labels["profile"]).observe(max(0.0, waited))
        box = self._link.mailbox(self.video.id, self.video.attempt)
        self._link.send(self._order())
        reporter = asyncio.create_task(self._report_changes())
        log.info("job started", width=self.video.request.width, height=self.video.request.height)
        try:
            while True:
                message = await self._next(box)
                if await self._handle(message):
                    break
        finally:
            reporter.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reporter
            self._link.close(self.video.id, self.video.attempt)
            self.released.set()

    def _order(self) -> protocol.Generate:
        request = self.video.request
        return protocol.Generate(
            job=self.video.id,
            attempt=self.video.attempt,
            directory=str(self._store.directory(self.video.id)),
            prompt=request.prompt,
            negative_prompt=request.negative_prompt,
            width=request.width,
            height=request.height,
            num_frames=request.num_frames,
            fps=request.fps,
            num_inference_steps=request.num_inference_steps,
            guidance_scale=request.guidance_scale,
            guidance_scale_2=request.guidance_scale_2,
            boundary_ratio=request.boundary_ratio,
            flow_shift=request.flow_shift,
            seed=request.seed,
            image=self._picture(),
        )

    def _picture(self) -> str | None:
        """Where the gateway stored the picture that the video starts from."""
        file = self.video.input_file
        return str((self._store.root / file).absolute()) if file else None

    async def _next(self, box: asyncio.Queue[protocol.FromChild | Exit]) -> protocol.FromChild | Exit:
        """The next message; a worker that says nothing for too long is killed, and its Exit comes next."""
        allowed = (
            self._clock.allowed_seconds if self._phase == "denoising" else self._deadlines.decode_seconds
        )
        ends = self._started + self._deadlines.job_seconds + self._patience.paused_seconds
        left = ends - time.monotonic()
        try:
            return await self._patience.message(box, min(allowed, left))
        except TimeoutError:
            if left <= allowed:
                self._missed = "job"
                reason = f"the job took longer than deadlines.job_seconds ({self._deadlines.job_seconds:g} s)"
            else:
                self._missed = "step" if self._phase == "denoising" else "decode"
                reason = f"the engine gave no sign of progress for {allowed:g} s while {self._where()}"
            log.error("deadline missed", reason=reason)
            self._link.condemn(reason, hung=True)
            return await box.get()

    def _where(self) -> str:
        if self._phase == "denoising":
            return f"denoising (step {min(self._step + 1, self._steps)} of {self._steps})"
        return self._phase.replace("_", " ")

    async def _handle(self, message: protocol.FromChild | Exit) -> bool:
        """Act on one message; True when the attempt is settled."""
        match message:
            case protocol.Phase():
                self._phase_ends()
                self._phase = message.name
                self._changed.set()
                if message.name == "encoding":
                    self._taken = time.monotonic() - self._started
                    self.released.set()
                return False
            case protocol.Step():
                if message.step > self._step:
                    metrics.step_seconds.labels(**self._labels).observe(message.seconds)
                    self._clock.note(message.seconds)
                self._step, self._steps = message.step, message.steps
                self._changed.set()
                return False
            case protocol.Done():
                await self._done(message)
            case protocol.Cancelled():
                await self._stopped()
            case protocol.Refused():
                await self._fail(RequestRefusedByEngine(message.message, param=message.param))
            case protocol.Failed():
                await self._failed(message)
            case Exit():
                await self._engine_ended(None)
            case _:
                return False
        return True

    def _phase_ends(self) -> None:
        now = time.monotonic()
        metrics.phase_seconds.labels(phase=self._phase, **self._labels).observe(now - self._phase_started)
        self._phase_started = now

    async def _done(self, message: protocol.Done) -> None:
        self._phase_ends()
        memory = message.facts.get("memory", {})
        self.memory = (memory.get("resident_bytes", 0), memory.get("allocated_bytes", 0))
        facts = message.facts | {"total_seconds": time.monotonic() - self._started}
        after = await persist(
            lambda: settle.complete(
                self._database,
                self.video,
                video_file=message.video,
                thumbnail_file=message.thumbnail,
                size=message.bytes,
                facts=facts,
            )
        )
        if after is None or after.state is not VideoState.COMPLETED or after.deleted_at is not None:
            await self._discard_files()
        else:
            await self._measure(facts["total_seconds"])
        self._count(after)

    async def _measure(self, total: float) -> None:
        # One measurement more or less: nothing waits for a database that has just gone away.
        with contextlib.suppress(DatabaseUnavailable):
            await measured.note(
                self._database,
                self.video,
                profile=self._labels["profile"],
                rung=self._rung,
                seconds=self._lead_seconds + (total if self._taken is None else self._taken),
            )

    async def _stopped(self) -> None:
        if self._abandoned:
            await self._again(EngineFailed("The supervisor was shut down."), counts=False)
            return
        if self._late:
            await self._fail(DeadlineExceeded())
            return
        after = await persist(lambda: settle.cancelled(self._database, self.video))
        await self._discard_files()
        self._count(after)

    async def _failed(self, message: protocol.Failed) -> None:
        log.error("job failed in the engine", kind=message.kind, message=message.message)
        if message.kind == "storage" and message.healthy:
            error = StorageFailed(f"The video could not be written: {message.message}.")
            await self._again(error, delay_seconds=STORAGE_SECONDS)
            return
        # Before the job is settled: the queue must not bring the next one to this process.
        self._link.condemn(f"a job failed: {message.message}")
        await self._engine_ended(message)

    async def _engine_ended(self, failure: protocol.Failed | None) -> None:
        """The engine is gone or condemned: find out why, then settle the job by it."""
        if self._abandoned:
            await self._again(EngineFailed("The supervisor was shut down."), counts=False)
            return
        end = End(phase=self._phase, deadline=self._missed, failure=failure, video=self.video)
        verdict = await self._examine(end)
        if verdict.client_error:
            await self._fail(RequestRefusedByEngine(verdict.sentence), verdict)
        elif failure is not None and failure.kind == "frames":
            # The same seed on the same weights gives the same frames: another try would not help.
            await self._fail(FramesInvalid(verdict.sentence), verdict)
        elif verdict.retry:
            await self._again(EngineFailed(verdict.sentence), counts=verdict.counts, verdict=verdict)
        else:
            await self._fail(EngineFailed(verdict.sentence), verdict)

    async def _fail(self, error: FramekeeperError, verdict: Verdict | None = None) -> None:
        incident = verdict.incident_id if verdict else None
        after = await persist(lambda: settle.fail(self._database, self.video, error, incident_id=incident))
        await self._discard_files()
        self._count(after)

    async def _again(
        self,
        error: FramekeeperError,
        *,
        delay_seconds: float = 0,
        counts: bool = True,
        verdict: Verdict | None = None,
    ) -> None:
        await self._discard_files()
        after = await persist(
            lambda: settle.requeue(
                self._database,
                self.video,
                error,
                max_attempts=self._settings.max_attempts,
                delay_seconds=delay_seconds,
                counts=counts,
                engine_died=verdict is not None and verdict.engine_died,
                incident_id=verdict.incident_id if verdict else None,
            )
        )
        self._count(after)

    async def _discard_files(self) -> None:
        await asyncio.to_thread(self._store.remove_attempt, self.video.id, self.video.attempt)

    def _count(self, after: Video | None) -> None:
        """Log and count what the job became; None means that somebody else has settled it."""
        if after is None:
            log.info("job was settled elsewhere, result dropped")
            return
        log.info("job settled", state=after.state.value, error=after.error_message)
        if after.state.final or after.deleted_at is not None:
            self._store.remove_input(after.id)
        if after.state.final:
            metrics.count_finished(after.state.value, after.error_code)
        else:
            metrics.attempts_again.inc()

    async def _report_changes(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                row = await settle.report(
                    self._database, self.video, phase=self._phase, step=self._step, steps=self._steps
                )
            except DatabaseUnavailable:
                self._changed.set()
            except Exception:  # without this task nobody would notice a cancel
                log.exception("reporting progress failed")
            else:
                # A lost notification must not lose a cancel; a row that is not ours any more needs no work.
                if row is None or row.cancel_requested_at is not None:
                    self.stop()
                elif row.overdue(datetime.now(UTC)) and not self._stop_sent:
                    self._late = True
                    self.stop()
            await asyncio.sleep(REPORT_SECONDS)
