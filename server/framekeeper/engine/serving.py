"""Feeding one proven worker with jobs, for as long as it lives and its supervisor wants it to."""

from __future__ import annotations

import asyncio
import time

import structlog
from procrastinate.worker import Worker as QueueWorker

from framekeeper.database.pool import Database
from framekeeper.engine.attempt import Attempt
from framekeeper.engine.course import Course
from framekeeper.engine.end import Examine
from framekeeper.engine.link import Link
from framekeeper.engine.memory_watch import MemoryWatch
from framekeeper.engine.status import EngineStatus
from framekeeper.errors import EngineFailed
from framekeeper.jobs import settle
from framekeeper.jobs.engines import EngineState
from framekeeper.jobs.shape import admitted_queues
from framekeeper.jobs.video import Video
from framekeeper.media.condition import Condition
from framekeeper.media.store import MediaStore
from framekeeper.profiles.schema import parse_size
from framekeeper.settings import Settings

log = structlog.get_logger()

#: A job that this engine may not take waits so long before it is offered again, to another engine.
PUT_BACK_SECONDS = 5
#: Between two looks at the media directory while no job comes, and while nothing could be stored there.
MEDIA_SECONDS, BLOCKED_SECONDS = 5.0, 2.0
#: An engine goes on down to this, or to a quarter of FRAMEKEEPER_MIN_FREE_BYTES: what is above is kept free
#: for the jobs that were accepted. White noise of 720p, the largest video there is, takes 52 MB.
LEAST_FREE_BYTES = 64 * 1024 * 1024
#: A longer time than this between two jobs is no time that fetching one takes.
LEAD_SECONDS = 2.0


class Serving:
    """Jobs of one process. `recycle` is the reason for a planned end, once there is one."""

    def __init__(
        self,
        link: Link,
        *,
        course: Course,
        settings: Settings,
        database: Database,
        store: MediaStore,
        status: EngineStatus,
        examine: Examine,
        memory_limit: int | None,
    ) -> None:
        self.recycle: str | None = None
        self._link = link
        self._course = course
        self._settings = settings
        self._database = database
        self._store = store
        self._media = Condition(store.root, min(settings.min_free_bytes // 4, LEAST_FREE_BYTES))
        #: Set when a job was not begun, as its video could not be stored.
        self._blocked = asyncio.Event()
        self._status = status
        self._examine = examine
        self._memory = MemoryWatch(memory_limit)
        self._attempts: set[Attempt] = set()
        self._following: set[asyncio.Task[None]] = set()
        self._closing = asyncio.Event()
        #: When the engine became free for another job; by time.monotonic.
        self._free_since: float | None = None
        self._log = log.bind(engine=status.id)

    async def run(self, stopping: asyncio.Event) -> None:
        """Fetch and make jobs until the worker ends, `stopping` is set, or a recycle is due."""
        ended = asyncio.create_task(self._until_ended(stopping), name="engine ended or stopped")
        while not ended.done():
            if (fault := await self._media.fault()) is not None:
                if self._status.state is not EngineState.BLOCKED:
                    self._log.error("no job is begun", reason=fault, media=str(self._store.root))
                self._status.enter(EngineState.BLOCKED, detail=fault)
                await asyncio.wait({ended}, timeout=BLOCKED_SECONDS)
                continue
            queue = self._queue_worker()
            fetching = asyncio.create_task(queue.run(), name="queue worker")
            # When a limit on shapes ends, the engine listens to more queues again.
            patience = max(0.0, ends - time.time()) if (ends := self._course.limit_ends) else None
            watching = asyncio.create_task(self._until_blocked(), name="media directory")
            await asyncio.wait(
                {ended, fetching, watching}, timeout=patience, return_when=asyncio.FIRST_COMPLETED
            )
            watching.cancel()
            queue.stop()
            try:
                await fetching
            except Exception as error:  # the database is away: the engine waits for it, warm
                self._log.warning("queue unreachable", error=(str(error).splitlines() or [repr(error)])[0])
                await asyncio.wait({ended}, timeout=2)
        if self._following:
            await asyncio.wait(self._following)

    @property
    def working(self) -> set[str]:
        """Ids of the jobs that are being made."""
        return {attempt.video.id for attempt in self._attempts}

    def abandon(self) -> None:
        """Queue the running jobs again, without costing them a try."""
        for attempt in list(self._attempts):
            attempt.abandon()

    def close(self, reason: str) -> None:
        """Take no more jobs; `run` ends when the running ones have."""
        self.recycle = self.recycle or reason
        self._closing.set()

    async def _until_ended(self, stopping: asyncio.Event) -> None:
        waiting = [
            asyncio.create_task(each)
            for each in (self._link.process.wait(), stopping.wait(), self._closing.wait())
        ]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in waiting:
            task.cancel()

    async def _until_blocked(self) -> None:
        self._blocked.clear()
        looking = asyncio.create_task(self._media.until_faulty(MEDIA_SECONDS))
        blocked = asyncio.create_task(self._blocked.wait())
        try:
            await asyncio.wait({looking, blocked}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            looking.cancel()
            blocked.cancel()

    def _queue_worker(self) -> QueueWorker:
        self._course.show()
        self._idle()
        profile = self._course.launch.profile
        width, height = parse_size(profile.admits.size)
        return QueueWorker(
            app=self._database.queue,
            queues=admitted_queues(profile.serves, width, height, profile.admits.num_frames),
            name=self._status.id,
            concurrency=1,
            delete_jobs="always",  # the row of the video is the record
            additional_context={"serving": self},
            install_signal_handlers=False,
            update_heartbeat_interval=min(10.0, self._settings.stale_seconds / 3),
            stalled_worker_timeout=self._settings.stale_seconds,
        )

    async def make(self, video_id: str) -> None:
        """The queue's task: claim the job and work on it until the engine is free for the next one."""
        if self._link.gone or self._closing.is_set():  # the queue offers the wake-up again
            raise EngineFailed("The engine ended before it could claim the job.")
        if (fault := await self._media.fault()) is not None:  # as above, perhaps to another host
            self._blocked.set()
            raise EngineFailed(fault)
        video = await settle.claim(
            self._database, video_id, engine_id=self._status.id, run_id=self._status.run_id
        )
        if video is None:
            return
        if not self._admits(video):
            await self._put_back(video)
            return
        attempt = Attempt(
            video,
            link=self._link,
            database=self._database,
            store=self._store,
            deadlines=self._course.launch.profile.deadlines,
            settings=self._settings,
            examine=self._examine,
            profile=self._status.profile.name,
            rung=self._course.rung.rung,
            lead_seconds=self._lead_seconds(video),
        )
        self._attempts.add(attempt)
        following = asyncio.create_task(attempt.follow(), name=f"attempt {video.id}/{video.attempt}")
        self._following.add(following)
        following.add_done_callback(lambda task: self._finished(task, attempt))
        self._status.enter(EngineState.BUSY, detail=self._course.degraded)
        await self._until_released(attempt, following)

    def _lead_seconds(self, video: Video) -> float:
        """How long the engine was free before it started this job, if the job waited all that time."""
        if self._free_since is None or video.started_at is None:
            return 0.0
        free = time.monotonic() - self._free_since
        waited = (video.started_at - video.created_at).total_seconds()
        return free if video.attempt == 1 and free < min(waited, LEAD_SECONDS) else 0.0

    async def _until_released(self, attempt: Attempt, following: asyncio.Task[None]) -> None:
        released = asyncio.create_task(attempt.released.wait())
        try:
            await asyncio.wait({following, released}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:  # the queue's abort: the owner wants it stopped
            attempt.stop()
            await asyncio.wait({following, released}, return_when=asyncio.FIRST_COMPLETED)
            raise
        finally:
            released.cancel()
            self._free_since = time.monotonic()
            self._idle()

    def _admits(self, video: Video) -> bool:
        admits = self._course.launch.profile.admits
        request = video.request
        return request.width * request.height <= admits.area and request.num_frames <= admits.num_frames

    async def _put_back(self, video: Video) -> None:
        await settle.requeue(
            self._database,
            video,
            EngineFailed("This engine does not admit the job's shape at present."),
            max_attempts=self._settings.max_attempts,
            delay_seconds=PUT_BACK_SECONDS,
            counts=False,
        )

    def _finished(self, task: asyncio.Task[None], attempt: Attempt) -> None:
        self._following.discard(task)
        self._attempts.discard(attempt)
        if not task.cancelled() and task.exception() is not None:
            self._log.error("attempt ended in an error of ours", exc_info=task.exception())
        if attempt.memory is not None:
            resident, allocated = attempt.memory
            if reason := self._memory.after_job(resident=resident, allocated=allocated):
                self.close(reason)

    def _idle(self) -> None:
        if not self._link.gone:
            degraded = self._course.degraded
            self._status.enter(EngineState.DEGRADED if degraded else EngineState.READY, detail=degraded)
