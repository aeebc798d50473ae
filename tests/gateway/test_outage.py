"""Several gateways agree, and a database that goes away and comes back costs nothing but time."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from framekeeper.database.migrate import migrate
from framekeeper.database.pool import Database
from framekeeper.jobs import settle
from framekeeper.jobs.engines import EngineState
from framekeeper.settings import Settings
from gateway.conftest import register, report
from gateway.serving import served
from own_postgres import Server, own_postgres


@pytest.mark.usefixtures("ready_engine")
async def test_two_gateways_agree(settings: Settings, database: Database) -> None:
    with served(settings) as first, served(settings) as second:
        async with httpx.AsyncClient(base_url=first) as one, httpx.AsyncClient(
            base_url=second
        ) as other:  # fmt: skip
            answers = await asyncio.gather(
                *((one, other)[n % 2].post("/v1/videos", json={"prompt": f"cat {n}"}) for n in range(10))
            )
            made = {answer.json()["id"] for answer in answers}
            assert len(made) == 10
            lists = [(await client.get("/v1/videos")).json() for client in (one, other)]
            for video in lists[0]["data"] + lists[1]["data"]:
                video.pop("place")  # in each gateway as of its last look
            assert lists[0] == lists[1]
            assert {video["id"] for video in lists[0]["data"]} == made
            video_id = answers[0].json()["id"]
            await settle.claim(database, video_id, engine_id="host/0", run_id="run")
            assert (await other.get(f"/v1/videos/{video_id}")).json()["status"] == "in_progress"
            # One cancels, the other sees it; both delete, one wins.
            await other.post(f"/v1/videos/{video_id}/cancel")
            assert (await one.get(f"/v1/videos/{video_id}")).json()["cancel_requested"] is True
            deleted = await asyncio.gather(
                one.delete(f"/v1/videos/{video_id}"), other.delete(f"/v1/videos/{video_id}")
            )
            assert sorted(answer.status_code for answer in deleted) == [200, 404]
            assert (await other.get(f"/v1/videos/{video_id}")).status_code == 404


@pytest.fixture
def server() -> Iterator[Server]:
    with own_postgres() as server:
        yield server


async def prepare(url: str) -> None:
    migrate(url)
    database = Database(url, size=1)
    await database.open()
    await register(database)
    await report(database, EngineState.READY)
    await database.close()


def until_ready(http: httpx.Client, seconds: float) -> float:
    begin = time.monotonic()
    while http.get("/health/ready").status_code != 200:
        assert time.monotonic() < begin + seconds, http.get("/health/ready").text
        time.sleep(0.05)
    return time.monotonic() - begin


@pytest.mark.slow
def test_database_away_is_503_for_now_and_back_is_back(server: Server, tmp_path: Path) -> None:
    settings = Settings(database_url=server.url, var=tmp_path, min_free_bytes=0, stale_seconds=600)
    # Started while there is no database at all.
    with served(settings) as url, httpx.Client(base_url=url, timeout=20) as http:
        assert http.get("/health/live").status_code == 200
        assert http.get("/health/ready").status_code == 503
        server.start()
        asyncio.run(prepare(server.url))
        until_ready(http, 10)
        video_id = http.post("/v1/videos", json={"prompt": "a cat"}).json()["id"]
        server.stop()
        # Long enough for the pool to have given up in between.
        for method, path, body in (
            ("POST", "/v1/videos", {"prompt": "a cat"}),
            ("GET", f"/v1/videos/{video_id}", None),
            ("DELETE", f"/v1/videos/{video_id}", None),
        ):
            answer = http.request(method, path, json=body)
            assert answer.status_code == 503
            assert answer.json()["error"]["code"] == "database_unavailable"
            assert int(answer.headers["retry-after"]) > 0
        begin = time.monotonic()
        assert "database" in http.get("/health/ready").json()["reasons"][0]
        assert time.monotonic() - begin < 4.5
        assert http.get("/health/live").status_code == 200
        server.start()
        assert until_ready(http, 10) < 5
        # What was accepted is there, and what was refused was not half accepted.
        assert [video["id"] for video in http.get("/v1/videos").json()["data"]] == [video_id]
        assert http.delete(f"/v1/videos/{video_id}").status_code == 200


@pytest.mark.slow
def test_frozen_database_is_503_in_time_and_thawed_is_back(server: Server, tmp_path: Path) -> None:
    server.start()
    asyncio.run(prepare(server.url))
    settings = Settings(database_url=server.url, var=tmp_path, min_free_bytes=0, stale_seconds=600)
    with served(settings) as url, httpx.Client(base_url=url, timeout=60) as http:
        until_ready(http, 10)
        frozen = server.processes()
        for process in frozen:
            os.kill(process.pid, signal.SIGSTOP)
        try:
            begin = time.monotonic()
            assert "database" in http.get("/health/ready").json()["reasons"][0]
            assert time.monotonic() - begin < 4.5
            assert http.get("/v1/models").status_code == 503
        finally:
            for process in frozen:
                os.kill(process.pid, signal.SIGCONT)
        until_ready(http, 20)
        assert http.post("/v1/videos", json={"prompt": "a cat"}).status_code == 200
