"""A database of the first version comes to this one with its jobs."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from msgspec import to_builtins
from psycopg.types.json import Jsonb

from framekeeper.database.migrate import LOCK, migrate
from framekeeper.database.pool import Database
from framekeeper.jobs import cancel, lookup, settle
from framekeeper.jobs.video import VideoState
from jobs.records import request


async def test_jobs_of_the_first_schema_are_kept_and_usable(empty_postgres_url: str) -> None:
    migrate(empty_postgres_url, "0001")
    with psycopg.connect(empty_postgres_url) as connection:
        for state in ("queued", "in_progress", "completed"):
            connection.execute(
                """
                INSERT INTO videos (id, model, queue, request, state, steps, attempt, video_file)
                VALUES (%(id)s, 'tiny', 'tiny/6', %(request)s, %(state)s, 6, 1, '1.mp4')
                """,
                {
                    "id": f"video_{state}",
                    "state": state,
                    "request": Jsonb(to_builtins(request(prompt=state))),
                },
            )
    migrate(empty_postgres_url)
    migrate(empty_postgres_url)
    database = Database(empty_postgres_url, size=2)
    await database.open()
    try:
        videos, _ = await lookup.page(database, limit=10)
        assert {video.state.value: video.request.prompt for video in videos} == {
            state: state for state in ("queued", "in_progress", "completed")
        }
        claimed = await settle.claim(database, "video_queued", engine_id="e", run_id="r")
        assert claimed is not None
        assert claimed.state is VideoState.IN_PROGRESS
        await cancel.delete(database, "video_in_progress")
        assert len((await lookup.page(database, limit=10))[0]) == 2
    finally:
        await database.close()


def test_a_database_that_goes_away_while_it_is_migrated_is_unavailable(
    empty_postgres_url: str,
) -> None:
    with psycopg.connect(empty_postgres_url, autocommit=True) as other:
        # The migration waits for this lock; its connection is then ended.
        other.execute("SELECT pg_advisory_lock(%s)", [LOCK])
        with ThreadPoolExecutor() as pool:
            migrating = pool.submit(migrate, empty_postgres_url)
            end = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
            while not other.execute(end).fetchone():
                time.sleep(0.01)
            with pytest.raises(psycopg.OperationalError):
                migrating.result(20)
    migrate(empty_postgres_url)
