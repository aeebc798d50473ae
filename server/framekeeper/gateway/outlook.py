"""The line in front of the engines, looked at seldom and shown often.

Hundreds of clients poll and follow events: one look a moment a process serves all of them.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Depends, Request

from framekeeper.database.pool import Database
from framekeeper.errors import QueueFull
from framekeeper.gateway.auth import Caller
from framekeeper.jobs import space
from framekeeper.jobs.bound import Bound, require_room
from framekeeper.jobs.estimate import estimate
from framekeeper.jobs.line import Line, ModelLine, Standing, look
from framekeeper.jobs.quota import Quota
from framekeeper.jobs.video import Video, VideoRequest
from framekeeper.settings import Settings

#: Age at which a line is too old to be shown.
SHOWN_SECONDS = 0.5
#: Age at which a line is too old to admit by it.
FRESH_SECONDS = 0.1


class Room:
    """Room in one model's line, for jobs that are about to join it."""

    def __init__(self, outlook: Outlook, model: str) -> None:
        self._outlook = outlook
        self._model = model

    @property
    def line(self) -> ModelLine:
        """As it is known at the moment."""
        return self._outlook.known(self._model)

    def seconds(self, request: VideoRequest) -> float | None:
        """What a job will take an engine."""
        shape = (request.width, request.height, request.num_frames)
        return estimate(shape, request.num_inference_steps, self.line.measured)

    def standing(self, video: Video) -> Standing:
        """Where a job stands that has been stored. To be called for each, so that the line counts it."""
        return self._outlook.joined(video)


class Outlook:
    """One a process."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._line: Line | None = None
        self._looking = asyncio.Lock()
        #: Jobs that are being stored, by model.
        self._entering: Counter[str] = Counter()
        #: Jobs stored by this process, with the time: a look that began before has not seen them.
        self._entered: list[tuple[float, Video]] = []

    async def line(self, database: Database, *, age: float = SHOWN_SECONDS) -> Line:
        """A line of at most this age. Raises DatabaseUnavailable."""
        asked = time.monotonic()
        async with self._looking:
            if self._line is None or self._line.at < asked - age:
                line = await look(
                    database,
                    stale_seconds=self._settings.stale_seconds,
                    unserved_seconds=self._settings.unserved_seconds,
                )
                self._line = line
                self._entered = [each for each in self._entered if each[0] >= line.at]
                for _, video in self._entered:
                    self._join(line, video)
            return self._line

    def known(self, model: str) -> ModelLine:
        """One model's line as it is known, however old."""
        return self._line.model(model) if self._line else ModelLine(model=model)

    def joined(self, video: Video) -> Standing:
        """Count a job that this process has stored; where it stands."""
        self._entered.append((time.monotonic(), video))
        nowhere = Standing(None, None)
        if self._line is None:
            return nowhere
        self._join(self._line, video)
        return self._line.standing(video.id) or nowhere

    @staticmethod
    def _join(line: Line, video: Video) -> None:
        before = line.model(video.model)
        if video.id not in before.standings:
            line.models[video.model] = before.joined(video)

    def bytes_needed(self, requests: Sequence[VideoRequest]) -> int:
        """Bytes of media that these jobs and all open ones will write, by the line as it is known."""
        if self._line is None:
            return space.bytes_needed(0, None, requests)
        return space.bytes_needed(self._line.open_pixels, self._line.bytes_per_pixel, requests)

    @asynccontextmanager
    async def room(
        self, database: Database, model: str, bound: Bound, *, jobs: int = 1
    ) -> AsyncIterator[Room]:
        """Hold room for so many jobs while the block stores them.

        Raises QueueFull, DatabaseUnavailable. Exact within this process; another one's jobs of the last
        moment are not seen.
        """
        line = await self.line(database, age=FRESH_SECONDS)
        try:
            require_room(line.model(model), bound, jobs=jobs, unseen=self._entering[model])
        except QueueFull:
            # Nobody is sent away by an old look, nor told an old time.
            line = await self.line(database, age=0)
            require_room(line.model(model), bound, jobs=jobs, unseen=self._entering[model])
        self._entering[model] += jobs
        try:
            yield Room(self, model)
        finally:
            self._entering[model] -= jobs

    async def standings(self, database: Database, videos: Iterable[Video]) -> dict[str, Standing]:
        """Where each of these jobs stands; finished ones do nowhere. No query where all are finished."""
        open_ids = [video.id for video in videos if not video.state.final]
        if not open_ids:
            return {}
        line = await self.line(database)
        found = {each: standing for each in open_ids if (standing := line.standing(each)) is not None}
        if len(found) < len(open_ids):  # just accepted, by this process or another
            line = await self.line(database, age=0)
            found |= {each: standing for each in open_ids if (standing := line.standing(each)) is not None}
        return found


def bound_of(settings: Settings) -> Bound:
    """How long a line may be."""
    return Bound(jobs=settings.queue_jobs, seconds=settings.queue_seconds)


def quota_of(caller: Caller, settings: Settings) -> Quota:
    """What a caller may use: the key's own limits go before the settings."""
    own = caller.limits
    return Quota(
        jobs=settings.key_jobs if own.jobs is None else own.jobs,
        per_minute=settings.key_jobs_per_minute if own.jobs_per_minute is None else own.jobs_per_minute,
    )


async def _outlook(request: Request) -> Outlook:
    found: Outlook = request.app.state.outlook
    return found


OutlookOf = Annotated[Outlook, Depends(_outlook)]
