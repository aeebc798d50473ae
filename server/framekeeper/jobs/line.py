"""The line in front of the engines: who is where in it, and when each job will be done. Pure but for `look`.

The queue fetches by priority and age, and an owner's next job enters it when one of its own leaves it (see
places.py). That is played through here, with the seconds that jobs are estimated to take.
"""

from __future__ import annotations

import heapq
import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from framekeeper.database.pool import Database
from framekeeper.jobs import engines as engine_rows
from framekeeper.jobs import measured as measured_rows
from framekeeper.jobs import space
from framekeeper.jobs.engines import Engine
from framekeeper.jobs.estimate import estimate
from framekeeper.jobs.measured import Measured
from framekeeper.jobs.shape import parse_size
from framekeeper.jobs.unserved import SERVED, TooLarge, Unserved, unserved
from framekeeper.jobs.video import Video


@dataclass(frozen=True, slots=True, kw_only=True)
class Open:
    """A job that is not finished, as far as the line is concerned."""

    id: str
    model: str
    queue: str
    owner: str | None
    running: bool
    priority: int
    #: Its number in the queue; None while it waits in its row for a place.
    queue_job_id: int | None
    #: Seconds since its start, where it runs.
    elapsed: float | None
    step: int
    steps: int
    width: int
    height: int
    num_frames: int

    @property
    def shape(self) -> tuple[int, int, int]:
        """As `estimate` takes it."""
        return self.width, self.height, self.num_frames


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a job stands: jobs that start before it (None once it runs), and seconds until it is done."""

    place: int | None
    seconds: float | None
    #: Why it will not start at present, whoever is before it.
    waits: Unserved | TooLarge | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLine:
    """The line of one model. `starts` are the seconds until each waiting job starts, in their order."""

    model: str
    waiting: int = 0
    running: int = 0
    #: Until a job that is accepted now would start; None where that is not known.
    wait_seconds: float | None = None
    #: Until all that waits and runs is done.
    idle_seconds: float | None = None
    starts: tuple[float | None, ...] = ()
    measured: tuple[Measured, ...] = ()
    standings: dict[str, Standing] = field(default_factory=dict)
    jobs: tuple[Open, ...] = ()
    engines: int = 0

    def joined(self, video: Video) -> ModelLine:
        """This line with a job that has just joined it, without another look."""
        request = video.request
        last = max((job.queue_job_id for job in self.jobs if job.queue_job_id is not None), default=0)
        job = Open(
            id=video.id, model=self.model, queue=video.queue, owner=video.owner, running=False,
            priority=int(video.priority), queue_job_id=None if video.queue_job_id is None else last + 1,
            elapsed=None, step=0, steps=video.steps, width=request.width, height=request.height,
            num_frames=request.num_frames,
        )  # fmt: skip
        jobs = sorted((*self.jobs, job), key=lambda each: -each.priority)
        return arrange(self.model, jobs, self.engines, self.measured)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """All lines, as they were at `at` (by time.monotonic)."""

    at: float
    models: dict[str, ModelLine]
    #: Every engine, by name.
    engines: tuple[Engine, ...] = ()
    #: Bytes that a pixel of a frame took in the newest videos; None before there was one.
    bytes_per_pixel: float | None = None
    #: The models with jobs or engines that no engine serves.
    unserved: dict[str, Unserved] = field(default_factory=dict)
    #: The waiting jobs, by id, that no engine takes before a limit ends.
    too_large: dict[str, TooLarge] = field(default_factory=dict)
    #: Seconds since an engine last served a model, of every model that was ever seen.
    served_seconds: dict[str, float] = field(default_factory=dict)

    @property
    def open_pixels(self) -> int:
        """Of all frames of all jobs that are not finished."""
        return sum(
            job.width * job.height * job.num_frames for each in self.models.values() for job in each.jobs
        )

    def model(self, name: str) -> ModelLine:
        """That of one model; an empty one where nothing is known of it."""
        return self.models.get(name) or ModelLine(model=name)

    def standing(self, video_id: str) -> Standing | None:
        """Where a job stands now; None for one that is finished or was not there yet."""
        for each in self.models.values():
            if (found := each.standings.get(video_id)) is not None:
                seconds = found.seconds
                if seconds is not None:
                    seconds = max(0.0, seconds - (time.monotonic() - self.at))
                waits = self.unserved.get(each.model) or self.too_large.get(video_id)
                return Standing(found.place, seconds, waits)
        return None


_OPEN = """
    SELECT id, model, queue, owner, state = 'in_progress' AS running, priority, queue_job_id, step, steps,
        greatest(0, extract(epoch FROM clock_timestamp() - started_at))::float8 AS elapsed,
        (request ->> 'width')::int AS width, (request ->> 'height')::int AS height,
        (request ->> 'num_frames')::int AS num_frames
    FROM videos WHERE state IN ('queued', 'in_progress') ORDER BY priority DESC, created_at, id
"""


async def look(database: Database, *, stale_seconds: float, unserved_seconds: float = 0.0) -> Line:
    """The lines of all models that have an engine or a job. Raises DatabaseUnavailable.

    A job waits `unserved_seconds` for an engine of its model, 0 for ever: that is only told here.
    """
    at = time.monotonic()
    rows, engine_list, measured_list, ratios, served = await database.fetch_each(
        [_OPEN, engine_rows.ALL, measured_rows.BY_MODEL, space.RATIO, SERVED]
    )
    jobs: dict[str, list[Open]] = defaultdict(list)
    for row in rows:
        jobs[row["model"]].append(Open(**row))
    engines = tuple(Engine.from_row(row) for row in engine_list)
    serving = Counter(
        engine.model for engine in engines if engine.state.serving and engine.alive(stale_seconds)
    )
    measured = measured_rows.grouped(measured_list)
    models = {*jobs, *(engine.model for engine in engines)}
    look_up = unserved(engines, served, stale_seconds=stale_seconds, allowed=unserved_seconds)
    return Line(
        at=at,
        models={
            model: arrange(model, jobs[model], serving[model], measured.get(model, [])) for model in models
        },
        engines=engines,
        bytes_per_pixel=ratios[0]["ratio"],
        unserved={model: each for model in models if (each := look_up(model)) is not None},
        too_large=_too_large(
            [each for each in engines if each.state.serving and each.alive(stale_seconds)], jobs
        ),
        served_seconds={row["model"]: row["seconds"] for row in served},
    )


def _too_large(serving: Iterable[Engine], jobs: Mapping[str, Iterable[Open]]) -> dict[str, TooLarge]:
    """The waiting jobs that no engine takes at present, where one has a limit that ends by itself."""
    of_model: dict[str, list[Engine]] = defaultdict(list)
    for engine in serving:
        of_model[engine.model].append(engine)
    found = {}
    for model, engines in of_model.items():
        reason = next((each.reduced for each in engines if each.reduced), None)
        if reason is None:
            continue
        for job in jobs.get(model, ()):
            if not (job.running or any(_takes(each, job) for each in engines)):
                found[job.id] = TooLarge(reason)
    return found


def _takes(engine: Engine, job: Open) -> bool:
    width, height = parse_size(engine.admits["size"])
    return job.width * job.height <= width * height and job.num_frames <= engine.admits["num_frames"]


def arrange(model: str, jobs: Sequence[Open], engines: int, measured: Sequence[Measured]) -> ModelLine:
    """Play one model's line through. `jobs` by priority and age; `engines` that serve now.

    Without an engine that serves nobody knows when anything will be done, but the order is known.
    """
    took: dict[tuple[tuple[int, int, int], int], float | None] = {}

    def seconds(job: Open) -> float | None:
        key = (job.shape, job.steps)
        if key not in took:
            took[key] = estimate(job.shape, job.steps, measured)
        return took[key]

    standings: dict[str, Standing] = {}
    free: list[float | None] = []
    running = [job for job in jobs if job.running]
    for job in running:
        left = remaining(job, seconds(job)) if engines else None
        standings[job.id] = Standing(None, left)
        free.append(left)
    free += [0.0] * max(0, engines - len(running))
    starts: list[float | None] = []
    known = bool(engines) and None not in free
    # An engine takes its next job while the last one is still being encoded: that one holds nothing up.
    times = sorted((each for each in free if each is not None), reverse=True)[: max(1, engines)]
    heapq.heapify(times)
    idle = max(times, default=0.0)
    for place, job in enumerate(_order(job for job in jobs if not job.running)):
        own = seconds(job)
        start = times[0] if known else None
        starts.append(start)
        known = known and own is not None
        if start is None or own is None:
            standings[job.id] = Standing(place, None)
            continue
        heapq.heapreplace(times, start + own)
        idle = max(idle, start + own)
        standings[job.id] = Standing(place, start + own)
    return ModelLine(
        model=model,
        waiting=len(starts),
        running=len(running),
        wait_seconds=times[0] if known else None,
        idle_seconds=idle if known else None,
        starts=tuple(starts),
        measured=tuple(measured),
        jobs=tuple(jobs),
        engines=engines,
        standings=standings,
    )


def remaining(job: Open, seconds: float | None) -> float | None:
    """Seconds that a running job still takes its engine."""
    elapsed = job.elapsed or 0.0
    ahead = 1 - job.step / job.steps if job.steps else 1.0
    if seconds is None:
        return elapsed / job.step * (job.steps - job.step) if job.step else None
    # One that takes longer than it should is told by its steps.
    return seconds - elapsed if elapsed < seconds else seconds * ahead


def _order(waiting: Iterable[Open]) -> Iterable[Open]:
    """The order in which engines will take the waiting jobs."""
    queue: list[tuple[int, int, Open]] = []
    rows: dict[tuple[str | None, str], deque[Open]] = defaultdict(deque)
    last = 0
    for job in waiting:
        if job.queue_job_id is None:
            rows[job.owner, job.queue].append(job)
        else:
            heapq.heappush(queue, (-job.priority, job.queue_job_id, job))
            last = max(last, job.queue_job_id)
    while queue:
        _, _, job = heapq.heappop(queue)
        yield job
        if own := rows[job.owner, job.queue]:
            last += 1
            heapq.heappush(queue, (-own[0].priority, last, own.popleft()))
    # Of owners without any place yet.
    for own in rows.values():
        yield from own
