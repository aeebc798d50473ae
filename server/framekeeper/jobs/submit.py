"""Accepting a job: its row and its wake-up in the queue, in one transaction."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from datetime import datetime

import msgspec
from psycopg.types.json import Jsonb

from framekeeper.database.pool import Connection, Database
from framekeeper.jobs.shape import queue_name
from framekeeper.jobs.video import COLUMNS, NEW_ID, Priority, Video, VideoRequest

#: The queue's task. The row is the truth, the queued task only wakes a supervisor that may take it.
TASK = "framekeeper.generate"


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What is agreed beside the request itself; see `Video` for the fields."""

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
    """As `submit`, in the caller's transaction."""
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
        SELECT {NEW_ID}, moment, {", ".join(f"%({name})s" for name in values)}
        FROM (SELECT clock_timestamp() AS moment) now RETURNING id
        """,
        values,
    )
    row = await cursor.fetchone()
    assert row is not None
    return await wake(database, connection, row["id"], queue, priority=terms.priority)


async def wake(
    database: Database,
    connection: Connection,
    video_id: str,
    queue: str,
    *,
    priority: Priority = Priority.NORMAL,
    delay_seconds: float = 0,
) -> Video:
    """Put a wake-up for a queued video into the queue, in the caller's transaction; return the row."""
    schedule = {"schedule_in": {"seconds": round(delay_seconds)}} if delay_seconds >= 1 else {}
    job_id = await database.queue.configure_task(
        name=TASK, queue=queue, priority=int(priority), connection=connection, **schedule
    ).defer_async(video_id=video_id)
    cursor = await connection.execute(
        f"UPDATE videos SET queue_job_id = %(job)s WHERE id = %(id)s RETURNING {COLUMNS}",
        {"job": job_id, "id": video_id},
    )
    row = await cursor.fetchone()
    assert row is not None
    return Video.from_row(row)
