"""Accepting a job: its row and its wake-up in the queue, in one transaction."""

from __future__ import annotations

import msgspec
from psycopg.types.json import Jsonb

from framekeeper.database.pool import Connection, Database
from framekeeper.jobs.shape import queue_name
from framekeeper.jobs.video import COLUMNS, NEW_ID, Video, VideoRequest

#: The queue's task. The row is the truth, the queued task only wakes a supervisor that may take it.
TASK = "framekeeper.generate"


async def submit(database: Database, model: str, request: VideoRequest) -> Video:
    """Store the job as `queued` and wake an engine; both or neither. Raises DatabaseUnavailable."""
    queue = queue_name(model, request.width, request.height, request.num_frames)
    async with database.transaction() as connection:
        cursor = await connection.execute(
            f"""
            INSERT INTO videos (id, created_at, model, queue, request, steps)
            SELECT {NEW_ID}, moment, %(model)s, %(queue)s, %(request)s, %(steps)s
            FROM (SELECT clock_timestamp() AS moment) now RETURNING id
            """,
            {
                "model": model,
                "queue": queue,
                "request": Jsonb(msgspec.to_builtins(request)),
                "steps": request.num_inference_steps,
            },
        )
        row = await cursor.fetchone()
        assert row is not None
        return await wake(database, connection, row["id"], queue)


async def wake(
    database: Database, connection: Connection, video_id: str, queue: str, *, delay_seconds: float = 0
) -> Video:
    """Put a wake-up for a queued video into the queue, in the caller's transaction; return the row."""
    schedule = {"schedule_in": {"seconds": round(delay_seconds)}} if delay_seconds >= 1 else {}
    job_id = await database.queue.configure_task(
        name=TASK, queue=queue, connection=connection, **schedule
    ).defer_async(video_id=video_id)
    cursor = await connection.execute(
        f"UPDATE videos SET queue_job_id = %(job)s WHERE id = %(id)s RETURNING {COLUMNS}",
        {"job": job_id, "id": video_id},
    )
    row = await cursor.fetchone()
    assert row is not None
    return Video.from_row(row)
