"""Jobs whose engine is gone, and queued jobs without a wake-up."""

from __future__ import annotations

from collections.abc import Collection

from framekeeper.database.pool import Database
from framekeeper.errors import EngineFailed
from framekeeper.jobs import cancel, engines, lookup, reconcile, settle
from framekeeper.jobs.engines import EngineState
from framekeeper.jobs.submit import submit
from framekeeper.jobs.video import Video, VideoState
from jobs.records import ADMITS, DEFAULTS, request


async def register(database: Database, run_id: str) -> None:
    await engines.register(
        database, engine_id="host/0", host="host", run_id=run_id, model="tiny", profile="p", runtime="r",
        admits=ADMITS, defaults=DEFAULTS,
    )  # fmt: skip


async def running(database: Database, run_id: str = "first") -> Video:
    await register(database, run_id)
    video = await submit(database, "tiny", request())
    held = await settle.claim(database, video.id, engine_id="host/0", run_id=run_id)
    assert held is not None
    return held


async def settled(database: Database, stale_seconds: float = 30, max_attempts: int = 3) -> list[Video]:
    return await reconcile.settle_lost(
        database, max_attempts=max_attempts, stale_seconds=stale_seconds, run_id=None
    )


async def test_job_of_a_living_run_is_left_alone(database: Database) -> None:
    held = await running(database)
    assert await settled(database) == []
    assert await lookup.find(database, held.id) == held


async def test_job_whose_claim_was_not_answered_is_queued_again(database: Database) -> None:
    held = await running(database)

    async def unknown(*, run_id: str = "first", working: set[str] = set()) -> list[Video]:  # noqa: B006
        return await reconcile.settle_unknown(
            database, run_id=run_id, working=working, max_attempts=1, quiet_seconds=0
        )

    assert await unknown(working={held.id}) == []
    assert await unknown(run_id="another") == []
    assert await reconcile.settle_unknown(database, run_id="first", working=set(), max_attempts=1) == []
    (again,) = await unknown()
    assert (again.state, again.tries, again.attempt) == (VideoState.QUEUED, 0, 1)


async def test_job_of_a_run_that_was_replaced_is_queued_again(database: Database) -> None:
    held = await running(database)
    await register(database, "second")
    (again,) = await settled(database)
    assert (again.id, again.state, again.tries) == (held.id, VideoState.QUEUED, 1)
    assert await settled(database) == []


async def test_job_of_a_silent_engine_is_queued_again(database: Database) -> None:
    held = await running(database)
    async with database.transaction() as connection:
        await connection.execute("UPDATE engines SET heartbeat_at = clock_timestamp() - interval '31 s'")
    assert [video.id for video in await settled(database)] == [held.id]


async def test_supervisor_does_not_take_its_own_jobs_for_a_late_heartbeat(database: Database) -> None:
    held = await running(database)
    await database.execute("UPDATE engines SET heartbeat_at = clock_timestamp() - interval '1 h'")
    kept = await reconcile.settle_lost(database, max_attempts=3, stale_seconds=30, run_id="first")
    assert kept == []
    (again,) = await reconcile.settle_lost(database, max_attempts=3, stale_seconds=30, run_id="another")
    assert again.id == held.id


async def test_heartbeat_of_before_the_clock_was_put_back_is_no_sign_of_life(database: Database) -> None:
    held = await running(database)
    await database.execute("UPDATE engines SET heartbeat_at = clock_timestamp() + interval '1 h'")
    assert not (await engines.all_engines(database))[0].alive(30)
    assert [video.id for video in await settled(database)] == [held.id]


async def test_job_of_a_stopped_engine_is_queued_again(database: Database) -> None:
    held = await running(database)
    await engines.report(
        database, engine_id="host/0", run_id="first", state=EngineState.STOPPED, phase=None, detail=None,
        restarts=0, facts=None,
    )  # fmt: skip
    assert [video.id for video in await settled(database)] == [held.id]


async def test_lost_job_fails_when_its_attempts_are_used_up(database: Database) -> None:
    await running(database)
    await register(database, "second")
    (failed,) = await settled(database, max_attempts=1)
    assert failed.state is VideoState.FAILED
    assert failed.error_message is not None
    assert "This was the only attempt." in failed.error_message


async def test_lost_job_whose_owner_gave_it_up_is_not_run_again(database: Database) -> None:
    held = await running(database)
    await cancel.request_cancel(database, held.id)
    await register(database, "second")
    (after,) = await settled(database)
    assert after.state is VideoState.CANCELLED


async def test_lost_job_that_was_deleted_leaves_no_row(database: Database) -> None:
    held = await running(database)
    await cancel.delete(database, held.id)
    await register(database, "second")
    assert [video.id for video in await settled(database)] == [held.id]
    assert await database.fetch_all("SELECT id FROM videos") == []


async def test_replaced_run_reports_no_more(database: Database) -> None:
    await register(database, "first")
    await register(database, "second")
    assert not await engines.report(
        database, engine_id="host/0", run_id="first", state=EngineState.READY, phase=None, detail=None,
        restarts=0, facts=None,
    )  # fmt: skip
    (engine,) = await engines.all_engines(database)
    assert (engine.run_id, engine.state) == ("second", EngineState.STARTING)


async def test_forgotten_queued_job_gets_a_new_wake_up(database: Database) -> None:
    video = await submit(database, "tiny", request())
    assert await reconcile.wake_forgotten(database, quiet_seconds=0) == 0
    async with database.transaction() as connection:
        await connection.execute("DELETE FROM procrastinate_jobs")
    assert await reconcile.wake_forgotten(database, quiet_seconds=60) == 0
    assert await reconcile.wake_forgotten(database, quiet_seconds=0) == 1
    (task,) = await database.fetch_all("SELECT id, queue_name FROM procrastinate_jobs")
    assert task["queue_name"] == video.queue
    assert (await lookup.find(database, video.id)).queue_job_id == task["id"]
    assert await reconcile.wake_forgotten(database, quiet_seconds=0) == 0


async def test_wake_up_of_a_requeued_job_waits_as_asked(database: Database) -> None:
    held = await running(database)
    await settle.requeue(database, held, EngineFailed(), max_attempts=3, delay_seconds=60)
    (task,) = await database.fetch_all(
        "SELECT scheduled_at > now() + interval '50 s' AS later FROM procrastinate_jobs WHERE id <> %(old)s",
        {"old": held.queue_job_id},
    )
    assert task["later"]


async def test_queued_job_that_no_engine_admits_any_more_fails_with_the_reason(database: Database) -> None:
    await register(database, "first")
    large = await submit(database, "tiny", request(width=128, height=128, num_frames=49))
    small = await submit(database, "tiny", request())

    async def left() -> list[Video]:
        return await reconcile.fail_unadmitted(database, stale_seconds=30, quiet_seconds=0)

    async def admit(most: dict[str, object]) -> None:
        assert await engines.report(
            database, engine_id="host/0", run_id="first", state=EngineState.DEGRADED, phase=None,
            detail="the card's memory ran out.", restarts=1, facts=None, admits={**ADMITS, **most},
        )  # fmt: skip

    assert await left() == []
    await admit({"size": "64x64", "reduced": {"until": 9e9, "reason": "it did not fit"}})
    assert await left() == [], "a limit that ends by itself is waited for"
    await admit({"size": "64x64", "num_frames": 17})
    (failed,) = await left()
    assert (failed.id, failed.state, failed.error_code) == (large.id, VideoState.FAILED, "engine_failed")
    assert failed.error_message is not None
    assert "at most 64x64 with 17 frames, since the card's memory ran out" in failed.error_message
    assert (await lookup.find(database, small.id)).state is VideoState.QUEUED


async def test_wake_up_held_for_a_finished_job_is_removed_and_every_other_stays(database: Database) -> None:
    async def dropped(quiet_seconds: float, working: Collection[str] = ()) -> int:
        return await reconcile.drop_finished(database, working=working, quiet_seconds=quiet_seconds)

    video = await running(database)
    await database.execute("UPDATE procrastinate_jobs SET status = 'doing'")
    assert await dropped(0) == 0, "its job is being made"
    assert await settle.requeue(database, video, EngineFailed(), max_attempts=1) is not None
    (task,) = await database.fetch_all("SELECT status::text FROM procrastinate_jobs")
    assert task["status"] == "doing"
    assert await dropped(60) == 0, "its holder may be about to finish it"
    assert await dropped(0, {video.id}) == 0, "this process is busy with it"
    assert await dropped(0) == 1
    assert await database.fetch_all("SELECT id FROM procrastinate_jobs") == []


async def test_wake_up_held_for_a_deleted_job_is_removed_and_one_that_waits_stays(database: Database) -> None:
    gone, waits = [await submit(database, "tiny", request()) for _ in range(2)]
    await database.execute(
        "UPDATE procrastinate_jobs SET status = 'doing' WHERE id = %(id)s", {"id": gone.queue_job_id}
    )
    await database.execute("DELETE FROM videos")
    assert await reconcile.drop_finished(database, working=set(), quiet_seconds=0) == 1
    (task,) = await database.fetch_all("SELECT id FROM procrastinate_jobs")
    assert task["id"] == waits.queue_job_id
