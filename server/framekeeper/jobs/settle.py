"""What an engine may write about a job.

Every write is fenced: it changes the row only while the job is `in_progress` in the very attempt that the
writer holds. A host that comes back late changes nothing; the functions then return None.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from psycopg.types.json import Jsonb

from framekeeper.database.pool import Connection, Database
from framekeeper.errors import DeadlineExceeded, FramekeeperError
from framekeeper.jobs import deliveries
from framekeeper.jobs.places import fill_places
from framekeeper.jobs.video import COLUMNS, Video
from framekeeper.jobs.wake import wake

#: So many engines that died during one job make it the job's fault.
QUARANTINE_AFTER = 2

HELD = "id = %(id)s AND attempt = %(attempt)s AND state = 'in_progress'"


async def claim(database: Database, video_id: str, *, engine_id: str, run_id: str) -> Video | None:
    """Begin the next attempt of a queued job, or None when it is not queued (any more).

    The place in the queue that it leaves goes to its owner's next job.
    """
    async with database.transaction() as connection:
        cursor = await connection.execute(
            f"""
            UPDATE videos SET state = 'in_progress', attempt = attempt + 1, tries = tries + 1,
                engine_id = %(engine)s, run_id = %(run)s,
                started_at = clock_timestamp(), phase = NULL, step = 0
            WHERE id = %(id)s AND state = 'queued' RETURNING {COLUMNS}
            """,
            {"id": video_id, "engine": engine_id, "run": run_id},
        )
        row = await cursor.fetchone()
        if row is None:
            return None
        video = Video.from_row(row)
        await fill_places(database, connection, video.owner, video.queue)
        return video


async def report(database: Database, video: Video, *, phase: str, step: int, steps: int) -> Video | None:
    """Store how far the attempt is; the returned row tells whether the owner wants it stopped."""
    row = await database.fetch_one(
        f"""
        UPDATE videos SET phase = %(phase)s, step = %(step)s, steps = %(steps)s
        WHERE {HELD} RETURNING {COLUMNS}
        """,
        {"id": video.id, "attempt": video.attempt, "phase": phase, "step": step, "steps": steps},
    )
    return Video.from_row(row) if row else None


async def complete(
    database: Database,
    video: Video,
    *,
    video_file: str,
    thumbnail_file: str,
    size: int,
    facts: dict[str, Any],
) -> Video | None:
    """Publish the files of this attempt. A job whose owner asked to stop it in the meantime is cancelled, and
    one that is later than its deadline is failed.

    Asked again, because the answer was lost, it gives the same row.
    """
    async with database.transaction() as connection:
        held = await _hold(connection, video)
        if held is None:
            return await _published(connection, video, video_file)
        if held.cancel_requested_at is not None:
            return await _finish(connection, held, "state = 'cancelled'", {})
        if held.overdue(datetime.now(UTC)):
            return await _fail(connection, held, DeadlineExceeded())
        return await _finish(
            connection,
            held,
            """state = 'completed', step = steps, video_file = %(video_file)s, thumbnail_file = %(thumbnail)s,
            bytes = %(bytes)s, facts = %(facts)s""",
            {"video_file": video_file, "thumbnail": thumbnail_file, "bytes": size, "facts": Jsonb(facts)},
        )


async def fail(
    database: Database, video: Video, error: FramekeeperError, *, incident_id: str | None = None
) -> Video | None:
    """End the job for good with the words its owner reads."""
    async with database.transaction() as connection:
        held = await _hold(connection, video)
        return await _fail(connection, held, error, incident_id) if held else None


async def fail_queued(database: Database, video: Video, error: FramekeeperError) -> Video | None:
    """End a job that no engine has taken up; None when one has in the meantime."""
    async with database.transaction() as connection:
        cursor = await connection.execute(
            f"SELECT {COLUMNS} FROM videos WHERE id = %(id)s AND state = 'queued' FOR UPDATE",
            {"id": video.id},
        )
        row = await cursor.fetchone()
        if row is None:
            return None
        if video.queue_job_id is not None:
            await database.queue.job_manager.cancel_job_by_id_async(
                video.queue_job_id, delete_job=True, connection=connection
            )
        failed = await _fail(connection, Video.from_row(row), error)
        await fill_places(database, connection, failed.owner, failed.queue)
        return failed


async def cancelled(database: Database, video: Video) -> Video | None:
    """The engine has stopped the attempt as its owner asked."""
    async with database.transaction() as connection:
        held = await _hold(connection, video)
        return await _finish(connection, held, "state = 'cancelled'", {}) if held else None


async def requeue(
    database: Database,
    video: Video,
    error: FramekeeperError,
    *,
    max_attempts: int,
    delay_seconds: float = 0,
    counts: bool = True,
    engine_died: bool = False,
    incident_id: str | None = None,
) -> Video | None:
    """The attempt ended without a result: queue the job again, or fail it after `max_attempts` attempts.

    `counts=False` is for an attempt that we ended ourselves (shutdown): it does not use one up. A job that
    was there when an engine died of itself (`engine_died`) gets no third engine to end. A job whose owner
    asked to stop it is cancelled instead.
    """
    async with database.transaction() as connection:
        held = await _hold(connection, video)
        if held is None:
            return None
        if held.cancel_requested_at is not None:
            return await _finish(connection, held, "state = 'cancelled'", {})
        if held.overdue(datetime.now(UTC)):
            return await _fail(connection, held, DeadlineExceeded(), incident_id)
        if engine_died and held.engine_deaths + 1 >= QUARANTINE_AFTER:
            ended = (
                f"{QUARANTINE_AFTER} engines ended while they worked on this video, so it is not tried again"
            )
            return await _fail(connection, held, type(error)(f"{error.message} {ended}."), incident_id)
        if counts and held.tries >= max_attempts:
            last = "the only attempt" if held.tries == 1 else f"the last of {held.tries} attempts"
            return await _fail(
                connection, held, type(error)(f"{error.message} This was {last}."), incident_id
            )
        await connection.execute(
            f"""
            UPDATE videos SET state = 'queued', engine_id = NULL, run_id = NULL, phase = NULL, step = 0,
                tries = tries - %(given_back)s, engine_deaths = engine_deaths + %(died)s,
                incident_id = coalesce(%(incident)s, incident_id)
            WHERE {HELD}
            """,
            {
                "id": held.id,
                "attempt": held.attempt,
                "given_back": 0 if counts else 1,
                "died": int(engine_died),
                "incident": incident_id,
            },
        )
        return await wake(
            database, connection, held.id, held.queue, priority=held.priority, delay_seconds=delay_seconds
        )


async def _hold(connection: Connection, video: Video) -> Video | None:
    cursor = await connection.execute(
        f"SELECT {COLUMNS} FROM videos WHERE {HELD} FOR UPDATE",
        {"id": video.id, "attempt": video.attempt},
    )
    row = await cursor.fetchone()
    return Video.from_row(row) if row else None


async def _published(connection: Connection, video: Video, video_file: str) -> Video | None:
    """The row if this very attempt is published already: the database's answer to that write was lost."""
    cursor = await connection.execute(
        f"""
        SELECT {COLUMNS} FROM videos
        WHERE id = %(id)s AND attempt = %(attempt)s AND state = 'completed' AND video_file = %(file)s
        """,
        {"id": video.id, "attempt": video.attempt, "file": video_file},
    )
    row = await cursor.fetchone()
    return Video.from_row(row) if row else None


async def _fail(
    connection: Connection, held: Video, error: FramekeeperError, incident_id: str | None = None
) -> Video:
    return await _finish(
        connection,
        held,
        """state = 'failed', error_code = %(code)s, error_message = %(message)s,
        incident_id = coalesce(%(incident)s, incident_id)""",
        {"code": error.code, "message": error.message, "incident": incident_id},
    )


async def _finish(connection: Connection, held: Video, change: str, values: dict[str, Any]) -> Video:
    parameters = {"id": held.id, **values}
    if held.deleted_at is not None:
        await connection.execute("DELETE FROM videos WHERE id = %(id)s", parameters)
        return held
    cursor = await connection.execute(
        f"""
        UPDATE videos SET {change}, phase = NULL, completed_at = clock_timestamp()
        WHERE id = %(id)s RETURNING {COLUMNS}
        """,
        parameters,
    )
    row = await cursor.fetchone()
    assert row is not None
    video = Video.from_row(row)
    await deliveries.enter(connection, video)
    return video
