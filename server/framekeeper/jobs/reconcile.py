"""Finding jobs whose engine is gone, and queued jobs that nobody would wake for.

The rows decide: a job in progress belongs to a run of a supervisor; a run that is over, or an engine that
has been silent for too long, has lost its jobs. Each is settled through the fenced functions, so that two
supervisors which find the same job do it once.
"""

from __future__ import annotations

from collections.abc import Collection

from framekeeper.database.pool import Database
from framekeeper.errors import DeadlineExceeded, EngineFailed
from framekeeper.jobs import settle
from framekeeper.jobs.engines import AGE, Engine, EngineState, all_engines
from framekeeper.jobs.places import fill_all
from framekeeper.jobs.shape import parse_size
from framekeeper.jobs.video import COLUMNS, Priority, Video, VideoRequest
from framekeeper.jobs.wake import TASK, wake

INTERRUPTED = "The supervisor that worked on this video stopped without finishing it."


async def settle_lost(
    database: Database, *, max_attempts: int, stale_seconds: float, run_id: str | None
) -> list[Video]:
    """Queue again (or fail) every job in progress whose run is over; return what they became.

    A supervisor that was killed and started again has registered its engines under a new run, so that its
    predecessor's jobs are found at once; those of a host that stays away, after `stale_seconds`. The jobs of
    the run that asks, `run_id`, are not looked at: it knows by itself which it makes, however late its last
    heartbeat is, and `settle_unknown` finds the others. A gateway has none and asks with None.
    """
    rows = await database.fetch_all(
        f"""
        SELECT {", ".join("v." + name for name in COLUMNS.split(", "))} FROM videos v
        LEFT JOIN engines e ON e.id = v.engine_id AND e.run_id = v.run_id
        WHERE v.state = 'in_progress' AND v.run_id IS DISTINCT FROM %(run)s AND (
            e.id IS NULL OR e.state = 'stopped'
            OR {AGE} > %(stale)s
        )
        """,
        {"stale": stale_seconds, "run": run_id or ""},
    )
    settled = []
    for row in rows:
        video = Video.from_row(row)
        after = await settle.requeue(
            database, video, EngineFailed(INTERRUPTED), max_attempts=max_attempts, delay_seconds=0
        )
        if after is not None:
            settled.append(after)
    return settled


async def settle_unknown(
    database: Database, *, run_id: str, working: Collection[str], max_attempts: int, quiet_seconds: float = 10
) -> list[Video]:
    """Queue again every job that a living run holds without knowing it; return what they became.

    The answer to a claim is lost when the database goes away in that moment. `working` are the ids of the
    jobs that the run knows of. It costs no try.
    """
    rows = await database.fetch_all(
        f"""
        SELECT {COLUMNS} FROM videos
        WHERE state = 'in_progress' AND run_id = %(run)s AND id <> ALL(%(working)s)
            AND started_at < clock_timestamp() - make_interval(secs => %(quiet)s)
        """,
        {"run": run_id, "working": list(working), "quiet": quiet_seconds},
    )
    settled = []
    for row in rows:
        after = await settle.requeue(
            database, Video.from_row(row), EngineFailed(INTERRUPTED), max_attempts=max_attempts, counts=False
        )
        if after is not None:
            settled.append(after)
    return settled


async def fail_unadmitted(
    database: Database, *, stale_seconds: float, quiet_seconds: float = 60
) -> list[Video]:
    """Fail queued jobs that every engine of their model has become too small for; return them.

    An engine that stepped down to a smaller shape climbs again only by an operator or after a long quiet
    time. The owner is told rather than left waiting. A limit that ends by itself is waited for.
    """
    engines = [
        engine
        for engine in await all_engines(database)
        if engine.alive(stale_seconds) and engine.state is not EngineState.FAILED
    ]
    rows = await database.fetch_all(
        f"""
        SELECT {COLUMNS} FROM videos WHERE state = 'queued'
            AND created_at < clock_timestamp() - make_interval(secs => %(quiet)s)
        """,
        {"quiet": quiet_seconds},
    )
    failed = []
    for row in rows:
        video = Video.from_row(row)
        mine = [engine for engine in engines if engine.model == video.model]
        if mine and not any(_may_make(engine, video.request) for engine in mine):
            most = " or ".join(
                sorted({f"{each.admits['size']} with {each.admits['num_frames']} frames" for each in mine})
            )
            why = next((engine.detail for engine in mine if engine.detail), "its profile was changed")
            error = EngineFailed(
                f"No engine takes a video of this size any more: at most {most}, since {why}"
            )
            if (after := await settle.fail_queued(database, video, error)) is not None:
                failed.append(after)
    return failed


async def fail_overdue(database: Database) -> list[Video]:
    """Fail queued jobs whose deadline is over; return them. An engine stops those that it works on."""
    rows = await database.fetch_all(
        f"SELECT {COLUMNS} FROM videos WHERE state = 'queued' AND deadline_at < clock_timestamp()"
    )
    failed = [await settle.fail_queued(database, Video.from_row(row), DeadlineExceeded()) for row in rows]
    return [video for video in failed if video is not None]


def _may_make(engine: Engine, request: VideoRequest) -> bool:
    """Whether the engine admits this now, or will when a limit ends by itself."""
    if engine.admits.get("reduced"):
        return True
    width, height = parse_size(engine.admits["size"])
    small = request.width * request.height <= width * height
    return small and request.num_frames <= int(engine.admits["num_frames"])


async def wake_forgotten(database: Database, *, quiet_seconds: float = 10) -> int:
    """Give every queued job that lost its wake-up, or its turn, a new one; return how many there were.

    This repairs what no single transaction can lose, but a restored backup or a cleared queue can. Wake-ups
    that a dead supervisor holds are removed on the way.
    """
    for job in await database.queue.job_manager.get_stalled_jobs(task_name=TASK):
        # Its video is settled by `settle_lost`, which makes a wake-up of its own where one is needed.
        await database.execute("DELETE FROM procrastinate_jobs WHERE id = %(id)s", {"id": job.id})
    async with database.transaction() as connection:
        cursor = await connection.execute(
            """
            SELECT id, queue, priority FROM videos v WHERE state = 'queued' AND queue_job_id IS NOT NULL
                AND created_at < clock_timestamp() - make_interval(secs => %(quiet)s)
                AND NOT EXISTS (SELECT 1 FROM procrastinate_jobs j
                    WHERE j.id = v.queue_job_id AND j.status IN ('todo', 'doing'))
            FOR UPDATE SKIP LOCKED
            """,
            {"quiet": quiet_seconds},
        )
        rows = await cursor.fetchall()
        for row in rows:
            await wake(database, connection, row["id"], row["queue"], priority=Priority(row["priority"]))
    return len(rows) + await fill_all(database)


async def drop_finished(database: Database, *, working: Collection[str], quiet_seconds: float = 60) -> int:
    """Remove wake-ups still held for jobs that are final or gone; return how many there were.

    One stays when the database goes away between a job's last write and its wake-up's: its holder lives on,
    and it never counts as stalled. `working` are the ids of the jobs that this process is busy with.
    """
    rows = await database.fetch_all(
        """
        DELETE FROM procrastinate_jobs j WHERE task_name = %(task)s AND status = 'doing'
            AND args->>'video_id' <> ALL(%(working)s)
            AND NOT EXISTS (SELECT 1 FROM videos v WHERE v.id = j.args->>'video_id' AND (
                v.state IN ('queued', 'in_progress')
                OR v.completed_at > clock_timestamp() - make_interval(secs => %(quiet)s)))
            AND NOT EXISTS (SELECT 1 FROM procrastinate_events e WHERE e.job_id = j.id AND e.type = 'started'
                AND e.at > clock_timestamp() - make_interval(secs => %(quiet)s))
        RETURNING j.id
        """,
        {"task": TASK, "working": list(working), "quiet": quiet_seconds},
    )
    return len(rows)
