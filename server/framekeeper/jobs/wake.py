"""A wake-up in the queue: it tells a supervisor that may take the job to look at its row."""

from __future__ import annotations

from framekeeper.database.pool import Connection, Database
from framekeeper.jobs.video import COLUMNS, Priority, Video

#: The queue's task. The row is the truth, the queued task only wakes a supervisor that may take it.
TASK = "framekeeper.generate"


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
