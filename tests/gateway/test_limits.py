"""Limits as a client meets them: refusals with an honest Retry-After, places, estimates."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterator

import httpx
import pytest

from framekeeper.database.pool import Database
from framekeeper.jobs import measured, settle
from framekeeper.keys import rows
from framekeeper.keys.key import KeyLimits, Scope
from framekeeper.settings import Settings
from gateway.serving import served

CAT = {"prompt": "a cat"}


@pytest.fixture
def limited(settings: Settings) -> Iterator[str]:
    with served(settings.model_copy(update={"queue_jobs": 3})) as base:
        yield base


@pytest.mark.usefixtures("ready_engine")
async def test_a_full_queue_refuses_and_says_when_there_will_be_room(
    limited: str, database: Database
) -> None:
    async with httpx.AsyncClient(base_url=limited, timeout=20) as web:
        ids = [(await web.post("/v1/videos", json=CAT)).json()["id"] for _ in range(3)]
        first = await settle.claim(database, ids[0], engine_id="host/0", run_id="run")
        assert first is not None
        for _ in range(3):
            await measured.note(database, first, profile="cpu-tiny", rung=0, seconds=70.0)
        await asyncio.sleep(0.2)
        assert (await web.post("/v1/videos", json=CAT)).status_code == 200
        refused = await web.post("/v1/videos", json=CAT)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")
        # Of a job's 70 s what has passed since its claim is gone: tenths here, seconds on a busy machine.
        left = int(refused.headers["retry-after-ms"]) / 1000
        assert 60 < left < 70
        assert int(refused.headers["retry-after"]) == math.ceil(left)
        (line,) = (await web.get("/v1/queue")).json()["models"]
        assert (line["model"], line["waiting"], line["running"], line["limit_jobs"]) == ("tiny", 3, 1, 3)
        assert line["seconds"] == pytest.approx(280, abs=10)
        await web.delete(f"/v1/videos/{ids[1]}")
        await asyncio.sleep(0.2)
        assert (await web.post("/v1/videos", json=CAT)).status_code == 200


@pytest.mark.usefixtures("ready_engine")
async def test_a_burst_does_not_overstep_the_bound_of_a_process(limited: str) -> None:
    async with httpx.AsyncClient(base_url=limited, timeout=20) as web:
        answers = await asyncio.gather(*(web.post("/v1/videos", json=CAT) for _ in range(12)))
        assert sorted(answer.status_code for answer in answers) == [200] * 3 + [429] * 9


@pytest.mark.usefixtures("ready_engine")
async def test_a_job_tells_its_place_and_its_time(web: httpx.AsyncClient, database: Database) -> None:
    made = [(await web.post("/v1/videos", json=CAT)).json() for _ in range(3)]
    assert [video["place"] for video in made] == [0, 1, 2]
    assert [video["estimated_seconds"] for video in made] == [None] * 3
    running = await settle.claim(database, made[0]["id"], engine_id="host/0", run_id="run")
    assert running is not None
    await measured.note(database, running, profile="cpu-tiny", rung=0, seconds=100.0)
    await asyncio.sleep(0.6)
    seen = {video["id"]: video for video in (await web.get("/v1/videos")).json()["data"]}
    listed = [seen[video["id"]] for video in made]
    assert [video["place"] for video in listed] == [None, 0, 1]
    assert [video["estimated_seconds"] for video in listed] == pytest.approx([97, 197, 297], abs=3)
    single = (await web.get(f"/v1/videos/{made[2]['id']}")).json()
    assert single["place"] == 1
    await web.post(f"/v1/videos/{made[1]['id']}/cancel")
    cancelled = (await web.get(f"/v1/videos/{made[1]['id']}")).json()
    assert (cancelled["place"], cancelled["estimated_seconds"]) == (None, None)


@pytest.mark.usefixtures("ready_engine")
async def test_a_key_has_its_own_limits(settings: Settings, database: Database) -> None:
    both = (Scope.SUBMIT, Scope.READ)
    _, few = await rows.create(database, "few", both, KeyLimits(jobs=2))
    _, slow = await rows.create(database, "slow", both, KeyLimits(jobs_per_minute=3))
    _, usual = await rows.create(database, "usual", both)
    with served(settings.model_copy(update={"auth": "on", "key_jobs": 5})) as base:
        async with httpx.AsyncClient(base_url=base, timeout=20) as web:

            async def submit(secret: str, count: int) -> list[httpx.Response]:
                headers = {"Authorization": f"Bearer {secret}"}
                return [await web.post("/v1/videos", json=CAT, headers=headers) for _ in range(count)]

            for secret, allowed, code in (
                (few, 2, "too_many_jobs"),
                (slow, 3, "rate_limited"),
                (usual, 5, "too_many_jobs"),
            ):
                answers = await submit(secret, allowed + 1)
                assert [answer.status_code for answer in answers] == [200] * allowed + [429]
                assert answers[-1].json()["error"]["code"] == code
            told = (await submit(slow, 1))[0].headers
            assert 15 < int(told["retry-after-ms"]) / 1000 <= 20


@pytest.mark.usefixtures("ready_engine")
async def test_one_key_with_many_jobs_holds_another_key_up_by_its_places_only(
    settings: Settings, database: Database
) -> None:
    both = (Scope.SUBMIT, Scope.READ)
    _, greedy = await rows.create(database, "greedy", both)
    _, modest = await rows.create(database, "modest", both)
    with served(settings.model_copy(update={"auth": "on"})) as base:
        async with httpx.AsyncClient(base_url=base, timeout=20) as web:

            async def submit(secret: str) -> dict[str, int]:
                headers = {"Authorization": f"Bearer {secret}"}
                answer = await web.post("/v1/videos", json=CAT, headers=headers)
                found: dict[str, int] = answer.json()
                return found

            began = time.monotonic()
            greedy_places = [(await submit(greedy))["place"] for _ in range(50)]
            assert greedy_places == list(range(50))
            assert (await submit(modest))["place"] == 3
            assert time.monotonic() - began < 10
