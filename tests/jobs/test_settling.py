"""Claims, fenced results, attempts: what an engine may write, and what a late one may not."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import pytest
from procrastinate.exceptions import ConnectorException

from framekeeper.database.pool import Database
from framekeeper.errors import EngineFailed, InvalidRequest, VideoAlreadyFinished, VideoNotFound
from framekeeper.jobs import cancel, lookup, settle
from framekeeper.jobs.submit import submit
from framekeeper.jobs.video import Video, VideoState, accepted_at
from jobs.records import request

FILES: dict[str, Any] = {"video_file": "1.mp4", "thumbnail_file": "1.jpg", "size": 7, "facts": {"frames": 9}}


async def accepted(database: Database) -> Video:
    return await submit(database, "tiny", request())


async def claimed(database: Database, video_id: str | None = None) -> Video:
    video_id = video_id or (await accepted(database)).id
    held = await settle.claim(database, video_id, engine_id="host/0", run_id="run")
    assert held is not None
    return held


async def queued_tasks(database: Database) -> list[dict[str, Any]]:
    return await database.fetch_all("SELECT id, queue_name, status, args FROM procrastinate_jobs ORDER BY id")


async def test_accepted_job_has_a_row_and_a_wake_up(database: Database) -> None:
    video = await accepted(database)
    assert (video.state, video.attempt, video.progress) == (VideoState.QUEUED, 0, 0)
    assert await lookup.find(database, video.id) == video
    (task,) = await queued_tasks(database)
    assert (task["id"], task["queue_name"]) == (video.queue_job_id, "tiny/6")
    assert task["args"] == {"video_id": video.id}


async def test_failing_wake_up_leaves_no_row(database: Database) -> None:
    async with database.transaction() as connection:
        await connection.execute("ALTER TABLE procrastinate_jobs ADD CHECK (queue_name <> 'tiny/6')")
    with pytest.raises(ConnectorException):
        await accepted(database)
    assert (await lookup.page(database, limit=10))[0] == []


async def test_job_is_claimed_once_by_many(database: Database) -> None:
    video = await accepted(database)
    claims = await asyncio.gather(
        *(settle.claim(database, video.id, engine_id=f"e{n}", run_id="run") for n in range(6))
    )
    (held,) = [claim for claim in claims if claim]
    assert (held.state, held.attempt, held.tries) == (VideoState.IN_PROGRESS, 1, 1)


async def test_progress_is_stored_and_bounded(database: Database) -> None:
    held = await claimed(database)
    reported = await settle.report(database, held, phase="denoising", step=3, steps=6)
    assert reported is not None
    assert (reported.phase, reported.progress) == ("denoising", 50)
    reported = await settle.report(database, held, phase="decoding", step=6, steps=6)
    assert reported is not None
    assert reported.progress == 99


async def test_completed_job_carries_its_files(database: Database) -> None:
    done = await settle.complete(database, await claimed(database), **FILES)
    assert done is not None
    assert (done.state, done.progress, done.step) == (VideoState.COMPLETED, 100, 6)
    assert (done.video_file, done.thumbnail_file, done.bytes, done.facts) == (
        "1.mp4",
        "1.jpg",
        7,
        {"frames": 9},
    )
    assert done.completed_at is not None


async def test_failed_job_tells_why(database: Database) -> None:
    failed = await settle.fail(database, await claimed(database), EngineFailed("Out of memory."))
    assert failed is not None
    assert (failed.state, failed.error_code, failed.error_message) == (
        VideoState.FAILED, "engine_failed", "Out of memory.",
    )  # fmt: skip


async def test_late_attempt_changes_nothing(database: Database) -> None:
    late = await claimed(database)
    await settle.requeue(database, late, EngineFailed(), max_attempts=3)
    current = await claimed(database, late.id)
    assert current.attempt == 2
    assert await settle.report(database, late, phase="denoising", step=5, steps=6) is None
    assert await settle.complete(database, late, **FILES) is None
    assert await settle.fail(database, late, EngineFailed()) is None
    assert await settle.cancelled(database, late) is None
    assert await settle.requeue(database, late, EngineFailed(), max_attempts=3) is None
    assert await lookup.find(database, late.id) == current


async def test_result_is_taken_once(database: Database) -> None:
    held = await claimed(database)
    done = await settle.complete(database, held, **FILES)
    assert await settle.complete(database, held, **{**FILES, "video_file": "other.mp4"}) is None
    assert await settle.fail(database, held, EngineFailed()) is None
    assert await lookup.find(database, held.id) == done


async def test_publishing_again_because_the_answer_was_lost_gives_the_same(database: Database) -> None:
    held = await claimed(database)
    done = await settle.complete(database, held, **FILES)
    # None would mean that the files are nobody's.
    assert await settle.complete(database, held, **FILES) == done


async def test_interrupted_job_runs_again_until_its_attempts_are_used_up(database: Database) -> None:
    video = await accepted(database)
    for attempt in (1, 2):
        held = await claimed(database, video.id)
        again = await settle.requeue(database, held, EngineFailed("Killed."), max_attempts=3)
        assert again is not None
        assert (again.state, again.tries, again.step) == (VideoState.QUEUED, attempt, 0)
        assert again.queue_job_id != held.queue_job_id
    failed = await settle.requeue(
        database, await claimed(database, video.id), EngineFailed("Killed."), max_attempts=3
    )
    assert failed is not None
    assert failed.state is VideoState.FAILED
    assert failed.error_message == "Killed. This was the last of 3 attempts."


async def test_attempt_ended_by_ourselves_is_given_back(database: Database) -> None:
    video = await accepted(database)
    for _ in range(4):
        again = await settle.requeue(
            database, await claimed(database, video.id), EngineFailed(), max_attempts=1, counts=False
        )
        assert again is not None
        assert (again.state, again.tries) == (VideoState.QUEUED, 0)
    assert again.attempt == 4


async def test_queued_job_is_cancelled_at_once_with_its_wake_up(database: Database) -> None:
    video = await accepted(database)
    cancelled = await cancel.request_cancel(database, video.id)
    assert cancelled.state is VideoState.CANCELLED
    assert await cancel.request_cancel(database, video.id) == cancelled
    assert await database.fetch_all("SELECT id FROM procrastinate_jobs") == []
    assert await settle.claim(database, video.id, engine_id="e", run_id="r") is None


async def test_running_job_is_asked_to_stop_and_then_stopped(database: Database) -> None:
    held = await claimed(database)
    asked = await cancel.request_cancel(database, held.id)
    assert (asked.state, asked.cancel_requested_at is not None) == (VideoState.IN_PROGRESS, True)
    assert (await cancel.request_cancel(database, held.id)).cancel_requested_at == asked.cancel_requested_at
    seen = await settle.report(database, held, phase="denoising", step=1, steps=6)
    assert seen is not None
    assert seen.cancel_requested_at is not None
    stopped = await settle.cancelled(database, held)
    assert stopped is not None
    assert stopped.state is VideoState.CANCELLED


@pytest.mark.parametrize("end", ["complete", "requeue"])
async def test_job_asked_to_stop_never_comes_back(database: Database, end: str) -> None:
    held = await claimed(database)
    await cancel.request_cancel(database, held.id)
    if end == "complete":
        after = await settle.complete(database, held, **FILES)
    else:
        after = await settle.requeue(database, held, EngineFailed(), max_attempts=3)
    assert after is not None
    assert after.state is VideoState.CANCELLED


async def test_finished_job_cannot_be_cancelled(database: Database) -> None:
    held = await claimed(database)
    await settle.complete(database, held, **FILES)
    with pytest.raises(VideoAlreadyFinished):
        await cancel.request_cancel(database, held.id)


async def test_deleted_running_job_is_hidden_at_once_and_gone_when_it_stops(database: Database) -> None:
    held = await claimed(database)
    await cancel.delete(database, held.id)
    for read in (lookup.find, cancel.request_cancel, cancel.delete):
        with pytest.raises(VideoNotFound):
            await read(database, held.id)
    assert (await lookup.page(database, limit=10))[0] == []
    seen = await settle.report(database, held, phase="denoising", step=1, steps=6)
    assert seen is not None
    assert seen.cancel_requested_at is not None
    await settle.cancelled(database, held)
    assert await database.fetch_all("SELECT id FROM videos") == []


@pytest.mark.parametrize("state", ["queued", "completed", "failed", "cancelled"])
async def test_deleted_resting_job_leaves_nothing(database: Database, state: str) -> None:
    video = await accepted(database)
    if state == "cancelled":
        await cancel.request_cancel(database, video.id)
    elif state != "queued":
        held = await claimed(database, video.id)
        if state == "completed":
            await settle.complete(database, held, **FILES)
        else:
            await settle.fail(database, held, EngineFailed())
    await cancel.delete(database, video.id)
    assert await database.fetch_all("SELECT id FROM videos") == []
    assert [
        task for task in await queued_tasks(database) if task["status"] == "todo" and state == "queued"
    ] == []


async def test_pages_follow_one_another_without_gap(database: Database) -> None:
    made = [(await accepted(database)).id for _ in range(5)]
    first, more = await lookup.page(database, limit=3)
    assert ([video.id for video in first], more) == (made[:1:-1], True)
    rest, more = await lookup.page(database, limit=3, after=first[-1].id)
    assert ([video.id for video in rest], more) == (made[1::-1], False)
    for unknown in ("video_unknown", f"video_{0:032x}", f"video_{'f' * 32}"):
        with pytest.raises(InvalidRequest):
            await lookup.page(database, limit=3, after=unknown)


async def test_id_tells_to_the_microsecond_when_it_was_accepted(database: Database) -> None:
    for _ in range(20):
        video = await accepted(database)
        assert accepted_at(video.id) == video.created_at


@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_page_goes_on_behind_a_job_that_was_deleted(
    database: Database, order: Literal["asc", "desc"]
) -> None:
    made = [(await accepted(database)).id for _ in range(5)]
    expected = made if order == "asc" else made[::-1]
    first, _ = await lookup.page(database, limit=2, order=order)
    for video in first:
        await cancel.delete(database, video.id)
    rest, more = await lookup.page(database, limit=5, after=first[-1].id, order=order)
    assert ([video.id for video in rest], more) == (expected[2:], False)
