"""Accepting a job: its row and, where its owner has a place in the queue, its wake-up; in one transaction."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import msgspec
from psycopg.types.json import Jsonb

from framekeeper.database.pool import Connection, Database
from framekeeper.jobs.places import fill_places
from framekeeper.jobs.shape import queue_name
from framekeeper.jobs.video import COLUMNS, NEW_ID, Priority, Video, VideoRequest

_VALUE = {"input_file": "replace(%(input_file)s, '*', id)"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What is agreed beside the request itself; see `Video` for the fields.

    In `input_file` a star stands for the job's id, which there is not before its row.
    """

    owner: str | None = None
    priority: Priority = Priority.NORMAL
    deadline_at: datetime | None = None
    batch_id: str | None = None
    request_id: str | None = None
    input_file: str | None = None
    webhook_url: str | None = None
    estimated_seconds: float | None = None


async def submit(database: Database, model: str, request: VideoRequest, terms: Terms = Terms()) -> Video:
    """Store the job as `queued` and wake an engine; both or neither. Raises DatabaseUnavailable."""
    async with database.transaction() as connection:
        return await enter(database, connection, model, request, terms)


async def enter(
    database: Database, connection: Connection, model: str, request: VideoRequest, terms: Terms
) -> Video:
    """As `submit`, in the caller's transaction. The job may have to wait in its row, see places.py."""
    (video,) = await enter_all(database, connection, [(model, request, terms)])
    return video


async def enter_all(
    database: Database, connection: Connection, jobs: Sequence[tuple[str, VideoRequest, Terms]]
) -> list[Video]:
    """As `enter`, for many: places are filled once for all of them, by priority and then in this order."""
    videos = [await _insert(connection, *each) for each in jobs]
    woken: dict[str, Video] = {}
    for owner, queue in dict.fromkeys((video.owner, video.queue) for video in videos):
        woken |= {each.id: each for each in await fill_places(database, connection, owner, queue)}
    return [woken.get(video.id, video) for video in videos]


async def _insert(connection: Connection, model: str, request: VideoRequest, terms: Terms) -> Video:
    queue = queue_name(model, request.width, request.height, request.num_frames)
    values = {
        "model": model,
        "queue": queue,
        "request": Jsonb(msgspec.to_builtins(request)),
        "steps": request.num_inference_steps,
        **dataclasses.asdict(terms),
    }
    cursor = await connection.execute(
        f"""
        INSERT INTO videos (id, created_at, {", ".join(values)})
        SELECT id, moment, {", ".join(_VALUE.get(name, f"%({name})s") for name in values)}
        FROM (SELECT {NEW_ID} AS id, moment FROM (SELECT clock_timestamp() AS moment) now) fresh
        RETURNING {COLUMNS}
        """,
        values,
    )
    row = await cursor.fetchone()
    assert row is not None
    return Video.from_row(row)
