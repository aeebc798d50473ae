"""From the fields of one request, or of a batch, to jobs that are accepted: all of them or none."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Annotated, Any
from uuid import uuid4

import structlog
from fastapi import Depends, Request

from framekeeper.database.pool import Connection, Database
from framekeeper.errors import FramekeeperError, InvalidRequest, VideoDeleted, VideoNotFound
from framekeeper.gateway import content, metrics, pictures
from framekeeper.gateway.auth import Caller, SubmitterOf, granted
from framekeeper.gateway.body import forget
from framekeeper.gateway.outlook import FRESH_SECONDS, Outlook, OutlookOf, Room, bound_of, quota_of
from framekeeper.gateway.state import DatabaseOf, SettingsOf
from framekeeper.gateway.webhooks import check_url
from framekeeper.jobs import idempotency, lookup
from framekeeper.jobs.admission import Admitted, admit
from framekeeper.jobs.engines import Engine
from framekeeper.jobs.fields import shown
from framekeeper.jobs.line import Standing
from framekeeper.jobs.quota import charge
from framekeeper.jobs.submit import Terms, enter_all
from framekeeper.jobs.video import Video
from framekeeper.media.store import INPUT_FILE
from framekeeper.settings import Settings

#: Header of an answer that tells of jobs which an earlier request made.
REPLAYED = "Idempotent-Replayed"


@dataclass(frozen=True, slots=True)
class Accepted:
    """The jobs, in the order of the request; `replayed` where an earlier request with this key made them."""

    videos: list[Video]
    standings: Mapping[str, Standing | None]
    replayed: bool = False

    def standing(self, video: Video) -> Standing | None:
        """Where a job stands in the line."""
        return self.standings.get(video.id)


class Acceptance:
    """What one request needs to have jobs accepted."""

    def __init__(
        self, request: Request, caller: Caller, outlook: Outlook, database: Database, settings: Settings
    ) -> None:
        # Two keys in two headers are as wrong as two in one: neither is picked.
        given = request.headers.getlist("idempotency-key")
        self._key = idempotency.checked(", ".join(given)) if given else None
        self._request, self._caller, self._outlook = request, caller, outlook
        self._database, self._settings = database, settings

    async def accept(
        self, kind: str, bodies: Sequence[Mapping[str, Any]], *, batch: bool = False
    ) -> Accepted:
        """Store the jobs. `kind` tells one use of an idempotency key from another.

        Raises what a client can do wrong, VideoDeleted, PriorityNotAllowed, QueueFull, RateLimited,
        TooManyJobs, StorageFull, DatabaseUnavailable.
        """
        body_hash = idempotency.fingerprint(kind, [dict(body) for body in bodies])
        if self._key is not None:
            ids = await idempotency.find(self._database, self._caller.key_id, self._key, body_hash)
            if ids is not None:
                return await self._replay(ids)
        wanted = await self._admit(await pictures.resolved(bodies), batch=batch)
        needed = self._outlook.bytes_needed([each.request for each in wanted]) + pictures.most_bytes(wanted)
        media = self._settings.media_directory
        await asyncio.to_thread(content.require_space, media, self._settings.min_free_bytes, needed)
        batch_id = f"batch_{uuid4().hex}" if batch else None
        async with pictures.Staged(media) as staged, AsyncExitStack() as stack:
            await staged.write(wanted, batch=batch)
            forget(self._request)
            rooms = {
                model: await stack.enter_async_context(
                    self._outlook.room(self._database, model, bound_of(self._settings), jobs=jobs)
                )
                for model, jobs in Counter(each.model for each in wanted).items()
            }
            connection = await stack.enter_async_context(self._database.transaction())
            ids = None
            if self._key is not None:
                ids = await idempotency.claim(connection, self._caller.key_id, self._key, body_hash)
            videos = [] if ids else await self._enter(connection, wanted, rooms, batch_id)
            await staged.publish(videos)
        if ids:
            # Not before this transaction has given its connection back: many of these may wait for another.
            return await self._replay(ids)
        for video in videos:
            metrics.ACCEPTED.labels(video.model).inc()
        return Accepted(videos, {video.id: rooms[video.model].standing(video) for video in videos})

    async def _admit(self, bodies: Sequence[Mapping[str, Any]], *, batch: bool) -> list[Admitted]:
        line = await self._outlook.line(self._database, age=FRESH_SECONDS)
        try:
            return self._admit_by(line.engines, bodies, batch=batch)
        except FramekeeperError:
            # Nobody is refused by what the engines were a moment ago.
            line = await self._outlook.line(self._database, age=0)
        return self._admit_by(line.engines, bodies, batch=batch)

    def _admit_by(
        self, engines: Sequence[Engine], bodies: Sequence[Mapping[str, Any]], *, batch: bool
    ) -> list[Admitted]:
        wanted = []
        for number, body in enumerate(bodies):
            try:
                wanted.append(admitted := self._granted(admit(body, engines)))
                if admitted.wishes.webhook_url is not None:
                    check_url(admitted.wishes.webhook_url, self._settings)
            except InvalidRequest as error:
                if not batch:
                    raise
                raise InvalidRequest(
                    f"requests[{number}]: {error.message}", param=f"requests[{number}].{error.param}"
                ) from None
        return wanted

    def _granted(self, admitted: Admitted) -> Admitted:
        """With the priority that the caller's key gives it. Raises PriorityNotAllowed."""
        priority = granted(self._caller, admitted.wishes.priority)
        return replace(admitted, wishes=replace(admitted.wishes, priority=priority))

    async def _enter(
        self,
        connection: Connection,
        wanted: Sequence[Admitted],
        rooms: Mapping[str, Room],
        batch_id: str | None,
    ) -> list[Video]:
        owner = self._caller.key_id
        if owner is not None:
            await charge(connection, owner, quota_of(self._caller, self._settings), jobs=len(wanted))
        # Observe has bound it; the lines of the engine about this job carry it, too.
        request_id = structlog.contextvars.get_contextvars().get("request_id")
        jobs = []
        for each in wanted:
            assert each.wishes.priority is not None  # see _granted
            terms = Terms(
                owner=owner,
                priority=each.wishes.priority,
                deadline_at=each.wishes.deadline_at,
                webhook_url=each.wishes.webhook_url,
                batch_id=batch_id,
                request_id=request_id,
                estimated_seconds=rooms[each.model].seconds(each.request),
                input_file=INPUT_FILE if each.reference else None,
            )
            jobs.append((each.model, each.request, terms))
        videos = await enter_all(self._database, connection, jobs)
        if self._key is not None:
            await idempotency.keep(connection, owner, self._key, [video.id for video in videos])
        return videos

    async def _replay(self, ids: Sequence[str]) -> Accepted:
        """The jobs of the earlier request as they are now. Raises VideoDeleted."""
        videos, gone = [], []
        for each in ids:
            try:
                videos.append(await lookup.find(self._database, each, sees=self._caller.sees))
            except VideoNotFound:
                gone.append(each)
        if gone:
            raise _deleted(self._key or "", gone, [video.id for video in videos])
        standings = await self._outlook.standings(self._database, videos)
        return Accepted(videos, standings, replayed=True)


def _deleted(key: str, gone: Sequence[str], left: Sequence[str]) -> VideoDeleted:
    """Nothing of a deleted video is kept to answer with, and a repetition must not undo its deletion."""
    rest = f" Of its {len(gone) + len(left)} videos the others are there: {', '.join(left)}." if left else ""
    return VideoDeleted(
        f"Idempotency-Key={shown(key)} has made {', '.join(gone)}, which was deleted since: set a new key to "
        f"make another.{rest}",
        param="Idempotency-Key",
    )


async def _acceptance(
    request: Request, caller: SubmitterOf, outlook: OutlookOf, database: DatabaseOf, settings: SettingsOf
) -> Acceptance:
    return Acceptance(request, caller, outlook, database, settings)


AcceptanceOf = Annotated[Acceptance, Depends(_acceptance)]
