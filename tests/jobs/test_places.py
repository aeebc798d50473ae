"""Fairness: an owner with many jobs has a few places in the queue, and the rest wait in their rows."""

from __future__ import annotations

from framekeeper.database.pool import Database
from framekeeper.jobs import cancel, reconcile, settle
from framekeeper.jobs.places import PLACES
from framekeeper.jobs.submit import Terms, enter_all, submit
from framekeeper.jobs.video import Priority, Video
from jobs.records import request


async def offered(database: Database) -> list[str]:
    """Ids of the jobs in the queue, in the order in which it hands them out."""
    rows = await database.fetch_all(
        """
        SELECT args ->> 'video_id' AS id FROM procrastinate_jobs WHERE status = 'todo'
        ORDER BY priority DESC, procrastinate_jobs.id
        """
    )
    return [row["id"] for row in rows]


async def some(database: Database, owner: str | None, number: int, **terms: Priority) -> list[Video]:
    return [await submit(database, "tiny", request(), Terms(owner=owner, **terms)) for _ in range(number)]


async def serve_next(database: Database) -> str:
    """Do with the next job what an engine does, to its end."""
    video_id = (await offered(database))[0]
    held = await settle.claim(database, video_id, engine_id="e", run_id="r")
    assert held is not None
    async with database.transaction() as connection:
        await connection.execute("DELETE FROM procrastinate_jobs WHERE id = %s", [held.queue_job_id])
    await settle.complete(database, held, video_file="1.mp4", thumbnail_file="1.jpg", size=1, facts={})
    return video_id


async def test_first_job_of_another_key_waits_for_few_of_a_crowd(database: Database) -> None:
    crowd = await some(database, "a", 50)
    (single,) = await some(database, "b", 1)
    served = [await serve_next(database) for _ in range(PLACES + 1)]
    assert served == [*(video.id for video in crowd[:PLACES]), single.id]


async def test_every_job_gets_its_turn_in_order(database: Database) -> None:
    crowd = await some(database, None, 12)
    assert len(await offered(database)) == PLACES
    assert [await serve_next(database) for _ in crowd] == [video.id for video in crowd]
    assert await offered(database) == []


async def test_high_priority_takes_the_next_free_place_of_its_owner(database: Database) -> None:
    normal = await some(database, "a", PLACES + 2)
    (urgent,) = await some(database, "a", 1, priority=Priority.HIGH)
    served = [await serve_next(database) for _ in range(2)]
    assert served == [normal[0].id, urgent.id]


async def test_cancelled_and_deleted_jobs_give_their_place_on(database: Database) -> None:
    videos = await some(database, "a", PLACES + 3)
    await cancel.request_cancel(database, videos[0].id)
    await cancel.delete(database, videos[1].id)
    await cancel.delete(database, videos[PLACES + 2].id)
    expected = {video.id for video in videos[2 : PLACES + 2]}
    assert set(await offered(database)) == expected


async def test_other_shapes_and_models_have_places_of_their_own(database: Database) -> None:
    await some(database, "a", PLACES + 1)
    large = await submit(database, "tiny", request(width=128, height=128, num_frames=49), Terms(owner="a"))
    other = await submit(database, "other", request(), Terms(owner="a"))
    assert {large.id, other.id} <= set(await offered(database))


async def test_waiting_jobs_whose_turn_was_lost_are_found(database: Database) -> None:
    videos = await some(database, "a", PLACES + 2)
    async with database.transaction() as connection:
        await connection.execute("DELETE FROM procrastinate_jobs")
        await connection.execute("UPDATE videos SET queue_job_id = NULL")
    assert await reconcile.wake_forgotten(database) == PLACES
    assert await offered(database) == [video.id for video in videos[:PLACES]]
    assert await reconcile.wake_forgotten(database) == 0


async def test_a_batch_fills_the_places_once_with_its_most_urgent_jobs(database: Database) -> None:
    wanted = [Priority.NORMAL] * (PLACES + 1) + [Priority.HIGH] * 2
    jobs = [("tiny", request(), Terms(owner="a", priority=each)) for each in wanted]
    async with database.transaction() as connection:
        videos = await enter_all(database, connection, jobs)
    assert [video.priority for video in videos] == wanted
    chosen = [videos[-2].id, videos[-1].id, videos[0].id]
    assert await offered(database) == chosen
    # What is returned says so: the line is counted by it.
    assert {video.id for video in videos if video.queue_job_id is not None} == set(chosen)
