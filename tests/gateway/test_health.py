"""What the probes of compose and Kubernetes see."""

from __future__ import annotations

import httpx

from framekeeper.database.pool import Database
from framekeeper.jobs.engines import EngineState
from framekeeper.settings import Settings
from gateway.conftest import register, report


async def test_without_an_engine_the_process_lives_and_is_not_ready(web: httpx.AsyncClient) -> None:
    assert (await web.get("/health/live")).json() == {"status": "alive"}
    for path in ("/health/ready", "/health/startup"):
        answer = await web.get(path)
        assert answer.status_code == 503
        assert answer.json()["reasons"] == ["No engine has registered yet: start a supervisor."]
        assert answer.json()["error"]["code"] == "not_ready"


async def test_startup_tells_phase_and_seconds_until_an_engine_serves(
    web: httpx.AsyncClient, database: Database
) -> None:
    await register(database)
    await report(database, EngineState.LOADING, phase="weights")
    async with database.transaction() as connection:
        await connection.execute("UPDATE engines SET started_at = started_at - interval '40 s'")
    answer = await web.get("/health/startup")
    assert answer.status_code == 503
    (engine,) = answer.json()["engines"]
    assert (engine["state"], engine["phase"]) == ("loading", "weights")
    assert 0 <= engine["phase_seconds"] < 20
    assert 40 <= engine["seconds"] < 60
    assert answer.json()["reasons"][0].startswith("host/0 is loading, weights for ")
    await report(database, EngineState.WARMING)
    assert (await web.get("/health/ready")).status_code == 503
    await report(database, EngineState.READY)
    assert (await web.get("/health/startup")).status_code == 200
    answer = await web.get("/health/ready")
    assert (answer.status_code, answer.json()) == (200, {"status": "ready", "serving": ["host/0"]})


async def test_one_serving_engine_is_enough(web: httpx.AsyncClient, database: Database) -> None:
    for name, state in (("a/0", EngineState.FAILED), ("b/0", EngineState.BUSY)):
        await register(database, name)
        await report(database, state, name)
    assert (await web.get("/health/ready")).json()["serving"] == ["b/0"]


async def test_silent_or_stopped_engine_does_not_serve(web: httpx.AsyncClient, database: Database) -> None:
    await register(database)
    await report(database, EngineState.READY)
    async with database.transaction() as connection:
        await connection.execute("UPDATE engines SET heartbeat_at = clock_timestamp() - interval '31 s'")
    answer = await web.get("/health/ready")
    assert answer.status_code == 503
    assert answer.json()["reasons"] == ["host/0 has been silent for 31 s (last ready)."]
    (engine,) = (await web.get("/v1/engines")).json()["data"]
    assert (engine["state"], engine["serving"]) == ("ready", False)
    await report(database, EngineState.STOPPED)
    assert (await web.get("/health/ready")).status_code == 503


async def test_engines_are_listed_with_what_they_admit(web: httpx.AsyncClient, database: Database) -> None:
    assert (await web.get("/v1/engines")).json() == {"object": "list", "data": []}
    await register(database)
    await report(database, EngineState.DEGRADED)
    (engine,) = (await web.get("/v1/engines")).json()["data"]
    assert (engine["id"], engine["object"], engine["serving"]) == ("host/0", "engine", True)
    assert engine["admits"]["size"] == "128x128"


async def test_media_directory_that_cannot_be_used_is_a_reason(
    web: httpx.AsyncClient, database: Database, settings: Settings
) -> None:
    await register(database)
    await report(database, EngineState.READY)
    assert (await web.get("/health/ready")).status_code == 200
    settings.media_directory.parent.mkdir(parents=True, exist_ok=True)
    settings.media_directory.write_bytes(b"")
    for path in ("/health/ready", "/health/startup"):
        answer = await web.get(path)
        assert answer.status_code == 503
        (reason,) = answer.json()["reasons"]
        assert reason.startswith("The media directory (FRAMEKEEPER_MEDIA) cannot be made")
    settings.media_directory.unlink()
    assert (await web.get("/health/ready")).status_code == 200
