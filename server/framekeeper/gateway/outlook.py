"""The line in front of the engines, looked at seldom and shown often.

Hundreds of clients poll and follow events: one look a moment a process serves all of them.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from framekeeper.database.pool import Database
from framekeeper.gateway.auth import Caller
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


@dataclass(frozen=True, slots=True)
class Room:
    """The line that a job is about to join, and how many have joined it since it was looked at."""

    line: ModelLine
    unseen: int

    def seconds(self, request: VideoRequest) -> float | None:
        """What the job will take an engine."""
        shape = (request.width, request.height, request.num_frames)
        return estimate(shape, request.num_inference_steps, self.line.measured)

    def standing(self, video: Video) -> Standing:
        """Where the job stands once it has joined."""
        found = self.line.joined(video)
        return Standing(None if found.place is None else found.place + self.unseen, found.seconds)


class Outlook:
    """One a process."""

    def __init__(self, stale_seconds: float) -> None:
        self._stale_seconds = stale_seconds
        self._line: Line | None = None
        self._looking = asyncio.Lock()
        #: Jobs that are being accepted, by model, and those that were, with the time: no look has seen them.
        self._entering: Counter[str] = Counter()
        self._entered: list[tuple[float, str, int]] = []

    async def line(self, database: Database, *, age: float = SHOWN_SECONDS) -> Line:
        """A line of at most this age. Raises DatabaseUnavailable."""
        asked = time.monotonic()
        async with self._looking:
            if self._line is None or self._line.at < asked - age:
                self._line = line = await look(database, stale_seconds=self._stale_seconds)
                self._entered = [each for each in self._entered if each[0] >= line.at]
            return self._line

    @asynccontextmanager
    async def room(
        self, database: Database, model: str, bound: Bound, *, jobs: int = 1
    ) -> AsyncIterator[Room]:
        """Hold room for so many jobs while the block stores them; yields what is before them.

        Raises QueueFull, DatabaseUnavailable. Exact within this process; another one's jobs of the last
        moment are not seen.
        """
        line = (await self.line(database, age=FRESH_SECONDS)).model(model)
        unseen = self._entering[model] + sum(count for _, name, count in self._entered if name == model)
        require_room(line, bound, jobs=jobs, unseen=unseen)
        self._entering[model] += jobs
        try:
            yield Room(line, unseen)
            self._entered.append((time.monotonic(), model, jobs))
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
