"""The line: its order, its times, and its bound with an honest Retry-After."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from framekeeper.database.pool import Database
from framekeeper.errors import QueueFull, RateLimited, TooManyJobs
from framekeeper.jobs import engines, measured, quota, settle, submit
from framekeeper.jobs.bound import Bound, require_room
from framekeeper.jobs.engines import EngineState
from framekeeper.jobs.line import ModelLine, Open, Standing, arrange, look
from framekeeper.jobs.measured import Measured
from framekeeper.jobs.quota import Quota
from framekeeper.jobs.submit import Terms
from jobs.records import ADMITS, DEFAULTS, request

TEN_SECONDS = Measured(profile="p", width=64, height=64, num_frames=9, steps=6, seconds=10.0, runs=5)
ANY = Bound(jobs=1000, seconds=0)


def job(name: str, number: int | None = None, **changes: Any) -> Open:
    values: dict[str, Any] = {
        "id": name, "model": "tiny", "queue": "tiny/6", "owner": None, "running": False, "priority": 0,
        "queue_job_id": number, "elapsed": None, "step": 0, "steps": 6, "width": 64, "height": 64,
        "num_frames": 9,
    }  # fmt: skip
    return Open(**{**values, **changes})


def order(line: ModelLine) -> list[str]:
    waiting = {name: each.place for name, each in line.standings.items() if each.place is not None}
    return sorted(waiting, key=lambda name: waiting[name])


def test_jobs_are_done_one_after_the_other_behind_the_running_one() -> None:
    jobs = [job("run", 1, running=True, elapsed=4.0), job("a", 2), job("b", 3)]
    line = arrange("tiny", jobs, 1, [TEN_SECONDS])
    assert line.standings == {
        "run": Standing(None, 6.0),
        "a": Standing(0, 16.0),
        "b": Standing(1, 26.0),
    }
    assert (line.wait_seconds, line.idle_seconds, line.starts) == (26.0, 26.0, (6.0, 16.0))


def test_a_job_that_is_only_encoded_yet_is_no_second_engine() -> None:
    jobs = [
        job("encoded", 1, running=True, elapsed=10.5, step=6),
        job("run", 2, running=True, elapsed=1.0),
        job("a", 3),
    ]
    line = arrange("tiny", jobs, 1, [TEN_SECONDS])
    assert (line.starts, line.standings["a"].seconds) == ((9.0,), 19.0)


def test_two_engines_share_the_line() -> None:
    line = arrange("tiny", [job(name, number) for number, name in enumerate("abc")], 2, [TEN_SECONDS])
    assert [line.standings[name].seconds for name in "abc"] == [10.0, 10.0, 20.0]
    assert line.wait_seconds == 10.0


def test_an_owner_whose_jobs_wait_in_their_rows_lets_others_in_between() -> None:
    greedy = [job(f"g{n}", n if n < 3 else None, owner="greedy") for n in range(8)]
    modest = [job("m0", 10, owner="modest")]
    assert order(arrange("tiny", greedy + modest, 1, [])) == [
        "g0", "g1", "g2", "m0", "g3", "g4", "g5", "g6", "g7",
    ]  # fmt: skip


def test_the_higher_priority_goes_first() -> None:
    jobs = [job("high", 9, priority=1), job("normal", 1), job("low", 0, priority=-1)]
    assert order(arrange("tiny", jobs, 1, [])) == ["high", "normal", "low"]


def test_times_are_not_known_without_an_engine_or_a_measurement_but_places_are() -> None:
    jobs = [job("run", 1, running=True, elapsed=4.0), job("a", 2), job("b", 3)]
    for line in (arrange("tiny", jobs, 0, [TEN_SECONDS]), arrange("tiny", jobs, 1, [])):
        assert order(line) == ["a", "b"]
        assert {each.seconds for each in line.standings.values()} == {None}
        assert (line.wait_seconds, line.idle_seconds) == (None, None)


def test_a_running_job_that_takes_longer_than_it_should_is_told_by_its_steps() -> None:
    late = job("run", 1, running=True, elapsed=12.0, step=3)
    assert arrange("tiny", [late], 1, [TEN_SECONDS]).standings["run"].seconds == pytest.approx(5.0)


def test_a_line_that_is_too_long_says_when_there_will_be_room() -> None:
    jobs = [job("run", 0, running=True, elapsed=4.0), *(job(f"j{n}", n) for n in range(1, 5))]
    line = arrange("tiny", jobs, 1, [TEN_SECONDS])
    require_room(line, Bound(jobs=5, seconds=0))
    with pytest.raises(QueueFull) as refusal:
        require_room(line, Bound(jobs=4, seconds=0))
    assert refusal.value.retry_after == 6.0
    with pytest.raises(QueueFull) as refusal:
        require_room(line, Bound(jobs=5, seconds=0), jobs=2, unseen=1)
    assert refusal.value.retry_after == 16.0
    with pytest.raises(QueueFull) as refusal:
        require_room(line, Bound(jobs=100, seconds=40))
    assert refusal.value.retry_after == 6.0
    require_room(line, Bound(jobs=100, seconds=46))


def test_an_empty_line_takes_a_job_whatever_it_takes() -> None:
    require_room(arrange("tiny", [], 1, [TEN_SECONDS]), Bound(jobs=1, seconds=0.1))
    with pytest.raises(QueueFull):
        require_room(arrange("tiny", [job("a", 1)], 0, []), Bound(jobs=1, seconds=0))


async def ready(database: Database) -> None:
    await engines.register(
        database, engine_id="host/0", host="host", run_id="run", model="tiny", profile="p", runtime="cpu",
        admits=ADMITS, defaults=DEFAULTS,
    )  # fmt: skip
    await engines.report(
        database, engine_id="host/0", run_id="run", state=EngineState.READY, phase=None, detail=None,
        restarts=0, facts=None,
    )  # fmt: skip


async def test_the_line_of_the_database_is_in_the_order_of_the_queue(database: Database) -> None:
    await ready(database)
    for owner, count in (("greedy", 6), ("modest", 1)):
        for _ in range(count):
            await submit.submit(database, "tiny", request(), Terms(owner=owner))
    first = (await look(database, stale_seconds=30)).model("tiny")
    assert first.waiting == 7
    expected, taken = order(first), []
    for _ in range(7):
        head = await database.fetch_one(
            "SELECT args ->> 'video_id' AS video FROM procrastinate_jobs WHERE status = 'todo' "
            "ORDER BY priority DESC, id LIMIT 1"
        )
        assert head is not None
        video = await settle.claim(database, head["video"], engine_id="host/0", run_id="run")
        assert video is not None
        taken.append(video.id)
        await database.fetch_all(
            "DELETE FROM procrastinate_jobs WHERE args ->> 'video_id' = %(id)s RETURNING id", {"id": video.id}
        )
    assert taken == expected


async def test_the_newest_runs_on_the_present_rung_count(database: Database) -> None:
    await ready(database)
    video = await submit.submit(database, "tiny", request())
    for rung, seconds in [(0, 100.0)] * 5 + [(1, 3.0)] * 3 + [(1, each) for each in (5.0, 6.0, 7.0)] * 3:
        await measured.note(database, video, profile="p", rung=rung, seconds=seconds)
    (found,) = measured.grouped(await database.fetch_all(measured.BY_MODEL))["tiny"]
    assert (found.seconds, found.runs) == (6.0, 9)
    assert (await look(database, stale_seconds=30)).standing(video.id) == Standing(
        0, pytest.approx(6.0, abs=0.5)
    )


async def test_an_owner_has_as_many_unfinished_jobs_as_its_quota_says(
    database: Database,
) -> None:
    few = Quota(jobs=3, per_minute=0)

    async def one() -> bool:
        try:
            async with database.transaction() as connection:
                await quota.charge(connection, "one", few)
                await submit.enter(database, connection, "tiny", request(), Terms(owner="one"))
        except TooManyJobs:
            return False
        return True

    assert sum(await asyncio.gather(*(one() for _ in range(12)))) == 3


async def test_a_rate_is_one_bucket_for_all_and_tells_when_to_come_again(
    database: Database,
) -> None:
    slow = Quota(jobs=0, per_minute=30)

    async def take(owner: str, jobs: int = 1) -> float:
        try:
            async with database.transaction() as connection:
                await quota.charge(connection, owner, slow, jobs=jobs)
        except RateLimited as error:
            return error.retry_after or -1.0
        return 0.0

    assert await take("one", 29) == 0
    assert sum(each == 0 for each in await asyncio.gather(*(take("one") for _ in range(4)))) == 1
    wait = await take("one")
    assert 0 < wait <= 2
    assert await take("other") == 0
    await asyncio.sleep(wait + 0.05)
    assert await take("one") == 0
