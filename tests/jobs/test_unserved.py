"""Jobs of a model that no engine serves: they wait with a reason, and not for ever."""

from __future__ import annotations

import asyncio

import pytest

from framekeeper.database.pool import Database
from framekeeper.errors import DatabaseUnavailable
from framekeeper.jobs import engines, lookup, settle
from framekeeper.jobs.engines import EngineState
from framekeeper.jobs.line import look
from framekeeper.jobs.submit import Terms, submit
from framekeeper.jobs.unserved import Watch
from framekeeper.jobs.video import Video, VideoState
from jobs.records import ADMITS, DEFAULTS, request

HOUR = 3600.0


class Clock:
    """A process's own clock, put on by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def impatient() -> Watch:
    return Watch(stale_seconds=30, allowed=6 * HOUR, patience=0)


async def engine(database: Database, state: EngineState, *, model: str = "tiny", detail: str = "") -> None:
    await engines.register(
        database, engine_id="host/0", host="host", run_id="run", model=model, profile="p", runtime="r",
        admits=ADMITS, defaults=DEFAULTS,
    )  # fmt: skip
    await engines.report(
        database, engine_id="host/0", run_id="run", state=state, phase=None, detail=detail, restarts=0,
        facts=None,
    )  # fmt: skip


async def waiting(database: Database, terms: Terms | None = None) -> Video:
    """A job of a model that an engine serves at this moment."""
    await engine(database, EngineState.READY)
    video = await submit(database, "tiny", request(), terms or Terms())
    assert await impatient().fail(database) == []
    return video


async def pass_hours(database: Database, hours: float) -> None:
    """Let everything that is stored have happened so much earlier."""
    for column in ("videos.created_at", "engines.heartbeat_at", "model_service.served_at"):
        table, name = column.split(".")
        await database.execute(
            f"UPDATE {table} SET {name} = {name} - make_interval(secs => %(seconds)s)",
            {"seconds": hours * HOUR},
        )


async def reason(database: Database, video: Video) -> str | None:
    line = await look(database, stale_seconds=30, unserved_seconds=6 * HOUR)
    standing = line.standing(video.id)
    assert standing is not None
    return standing.waits.sentence(video.created_at) if standing.waits else None


async def test_job_whose_last_host_is_gone_waits_its_time_and_then_fails_with_the_reason(
    database: Database,
) -> None:
    video = await waiting(database, Terms(webhook_url="https://example.org/hook"))
    assert await reason(database, video) is None
    watch = impatient()
    await pass_hours(database, 5.9)
    assert await watch.fail(database) == []
    told = await reason(database, video)
    assert told is not None
    assert told.startswith("No engine serves 'tiny' since 20")
    assert "; its last engine, host/0, is silent. It fails if none does by 20" in told
    await pass_hours(database, 0.2)
    (failed,) = await watch.fail(database)
    assert (failed.id, failed.state, failed.error_code) == (video.id, VideoState.FAILED, "not_served")
    assert failed.error_message is not None
    assert failed.error_message.startswith("No engine has served 'tiny' since 20")
    assert "A video waits for one 6 h at most" in failed.error_message
    assert await watch.fail(database) == []
    (delivery,) = await database.fetch_all("SELECT event, payload FROM webhook_deliveries")
    assert delivery["event"] == "video.failed"
    assert delivery["payload"]["data"]["error"]["code"] == "not_served"
    assert await database.fetch_all("SELECT id FROM procrastinate_jobs") == []


async def test_job_is_made_when_an_engine_comes_back_in_time(database: Database) -> None:
    video = await waiting(database)
    watch = impatient()
    await pass_hours(database, 5.9)
    assert await watch.fail(database) == []
    await engine(database, EngineState.READY)
    assert await watch.fail(database) == []
    assert await reason(database, video) is None
    held = await settle.claim(database, video.id, engine_id="host/0", run_id="run")
    assert held is not None
    await pass_hours(database, 7)
    assert await watch.fail(database) == [], "one that is being made is not waiting"
    done = await settle.complete(database, held, video_file="1.mp4", thumbnail_file="1.jpg", size=1, facts={})
    assert done is not None
    assert done.state is VideoState.COMPLETED


async def test_job_whose_host_serves_another_model_now_fails_and_the_other_model_goes_on(
    database: Database,
) -> None:
    video = await waiting(database)
    await engine(database, EngineState.READY, model="other")
    other = await submit(database, "other", request())
    told = await reason(database, video)
    assert told is not None
    assert "no host has it any more" in told
    await pass_hours(database, 6.1)
    await engine(database, EngineState.READY, model="other")
    (failed,) = await impatient().fail(database)
    assert failed.id == video.id
    assert (await lookup.find(database, other.id)).state is VideoState.QUEUED


async def test_job_that_was_accepted_late_has_its_time_from_then_on(database: Database) -> None:
    early = await waiting(database)
    await pass_hours(database, 6.1)
    late = await submit(database, "tiny", request())
    assert [video.id for video in await impatient().fail(database)] == [early.id]
    assert (await lookup.find(database, late.id)).state is VideoState.QUEUED


async def test_engine_that_is_being_started_is_waited_for_twice_as_long_and_not_for_ever(
    database: Database,
) -> None:
    video = await waiting(database)
    watch = impatient()
    await pass_hours(database, 11.9)
    await engine(database, EngineState.LOADING)
    assert await watch.fail(database) == []
    told = await reason(database, video)
    assert told is not None
    assert "; host/0 is loading. It fails" in told
    await pass_hours(database, 0.2)
    await engine(database, EngineState.LOADING)
    assert [each.id for each in await watch.fail(database)] == [video.id]


async def test_engine_that_gave_up_is_named_with_its_reason(database: Database) -> None:
    video = await waiting(database)
    await engine(database, EngineState.FAILED, detail="the weights are damaged.")
    told = await reason(database, video)
    assert told is not None
    assert "; host/0 has failed: the weights are damaged. It fails" in told
    await pass_hours(database, 6.1)
    await engine(database, EngineState.FAILED, detail="the weights are damaged.")
    (failed,) = await impatient().fail(database)
    assert failed.error_message is not None
    assert "host/0 has failed: the weights are damaged." in failed.error_message


async def test_many_who_look_at_once_fail_each_job_once_and_tell_its_owner_once(database: Database) -> None:
    videos = [await waiting(database, Terms(webhook_url="https://example.org/hook")) for _ in range(8)]
    await pass_hours(database, 6.1)
    found = await asyncio.gather(*(impatient().fail(database) for _ in range(6)))
    assert sorted(video.id for some in found for video in some) == sorted(video.id for video in videos)
    told = await database.fetch_all("SELECT video_id FROM webhook_deliveries")
    assert sorted(row["video_id"] for row in told) == sorted(video.id for video in videos)


async def test_whoever_was_just_started_gives_the_engines_time_to_come(database: Database) -> None:
    video = await waiting(database)
    await pass_hours(database, 24)  # all was switched off
    clock = Clock()
    watch = Watch(stale_seconds=30, allowed=6 * HOUR, patience=900, clock=clock)
    assert await watch.fail(database) == []
    clock.now += 899
    assert await watch.fail(database) == []
    clock.now += 2
    assert [each.id for each in await watch.fail(database)] == [video.id]


async def test_patience_begins_anew_after_an_outage_and_after_an_engine_that_served(
    database: Database,
) -> None:
    await waiting(database)
    await pass_hours(database, 24)
    clock = Clock()
    watch = Watch(stale_seconds=30, allowed=6 * HOUR, patience=900, clock=clock)
    assert await watch.fail(database) == []
    clock.now += 901
    away = Database("postgresql://nobody@127.0.0.1:1/none", size=1, wait_seconds=0.2)
    await away.open()
    with pytest.raises(DatabaseUnavailable):
        await watch.fail(away)
    await away.close()
    assert await watch.fail(database) == []
    clock.now += 901
    await engine(database, EngineState.READY)
    assert await watch.fail(database) == []
    await pass_hours(database, 24)
    assert await watch.fail(database) == []


async def test_database_clock_that_jumps_fails_nothing_that_is_served(database: Database) -> None:
    await waiting(database)
    clock = Clock()
    watch = Watch(stale_seconds=30, allowed=6 * HOUR, patience=900, clock=clock)
    await watch.fail(database)
    clock.now += 5000
    await pass_hours(database, 24)  # every heartbeat looks old until the next one
    assert await watch.fail(database) == []
    await engine(database, EngineState.READY)
    clock.now += 5000
    assert await watch.fail(database) == []
    await pass_hours(database, -48)  # and from the future, once the clock is put back
    assert await watch.fail(database) == []
    (row,) = await database.fetch_all("SELECT served_at <= clock_timestamp() AS past FROM model_service")
    assert row["past"]


async def test_no_bound_keeps_jobs_and_still_says_why(database: Database) -> None:
    video = await waiting(database)
    await pass_hours(database, 1000)
    watch = Watch(stale_seconds=30, allowed=0)
    assert await watch.fail(database) == []
    standing = (await look(database, stale_seconds=30)).standing(video.id)
    assert standing is not None
    assert standing.waits is not None
    assert standing.waits.sentence(video.created_at).endswith("is silent. It is kept until one does.")


async def test_job_that_is_too_large_until_a_limit_ends_says_so_and_a_small_one_does_not(
    database: Database,
) -> None:
    small = await waiting(database)
    large = await submit(database, "tiny", request(width=128, height=128, num_frames=49))
    assert await reason(database, large) is None
    limit = {"reason": "The card's memory ran out.", "until": 1_800_000_000}
    assert await engines.report(
        database, engine_id="host/0", run_id="run", state=EngineState.DEGRADED, phase=None, detail=None,
        restarts=0, facts=None, admits={**ADMITS, "size": "64x64", "reduced": limit},
    )  # fmt: skip
    assert await reason(database, large) == (
        "No engine takes a video of this size at present: The card's memory ran out. This limit is tried "
        "again at 08:00 UTC."
    )
    assert await reason(database, small) is None
