"""Places in the queue: each owner has a few in each, and the owner's other jobs wait in their rows.

The queue itself fetches by priority and age only. With this a key that submits a hundred jobs does not hold
up another key's first one for longer than its places: whenever one is freed, that owner's next job takes it.
"""

from __future__ import annotations

from framekeeper.database.pool import Connection, Database
from framekeeper.jobs.video import Priority, Video
from framekeeper.jobs.wake import wake

#: Jobs of one owner that may stand in one queue at a time. One would do for fairness; a few more keep an
#: engine from waiting for the promotion of the next.
PLACES = 3


async def fill_places(
    database: Database, connection: Connection, owner: str | None, queue: str, *, places: int = PLACES
) -> list[Video]:
    """Wake the owner's next waiting jobs of this queue while there are places; return them.

    In the caller's transaction, which has just freed a place or added a job. Two that run at once may
    overstep the number by one each, which nobody notices.
    """
    cursor = await connection.execute(
        """
        SELECT id, priority FROM videos
        WHERE state = 'queued' AND queue_job_id IS NULL AND owner IS NOT DISTINCT FROM %(owner)s
            AND queue = %(queue)s
        ORDER BY priority DESC, created_at, id
        LIMIT greatest(0, %(places)s - (
            SELECT count(*) FROM videos WHERE state = 'queued' AND queue_job_id IS NOT NULL
                AND owner IS NOT DISTINCT FROM %(owner)s AND queue = %(queue)s
        ))
        FOR UPDATE SKIP LOCKED
        """,
        {"owner": owner, "queue": queue, "places": places},
    )
    return [
        await wake(database, connection, row["id"], queue, priority=Priority(row["priority"]))
        for row in await cursor.fetchall()
    ]


async def fill_all(database: Database) -> int:
    """Fill every owner's places in every queue where jobs wait; return how many were woken.

    Each freed place is filled by whoever frees it; this finds what a restored backup left.
    """
    async with database.transaction() as connection:
        cursor = await connection.execute(
            "SELECT DISTINCT owner, queue FROM videos WHERE state = 'queued' AND queue_job_id IS NULL"
        )
        woken = 0
        for row in await cursor.fetchall():
            woken += len(await fill_places(database, connection, row["owner"], row["queue"]))
        return woken
