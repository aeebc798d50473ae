"""What a gateway sees to when no supervisor is left."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import httpx

from framekeeper.database.pool import Database
from framekeeper.gateway.metrics import FINISHED
from framekeeper.gateway.upkeep import look
from framekeeper.jobs import lookup, settle
from framekeeper.jobs.engines import EngineState
from framekeeper.jobs.submit import submit
from framekeeper.jobs.unserved import Watch
from framekeeper.jobs.video import VideoState
from framekeeper.settings import Settings
from gateway.conftest import register, report
from jobs.records import request


def impatient(settings: Settings) -> Watch:
    return Watch(stale_seconds=settings.stale_seconds, allowed=settings.unserved_seconds, patience=0)


async def gone(database: Database, hours: float) -> None:
    """Let the only host have been gone for so long, and all jobs be older than that."""
    values = {"hours": hours}
    await database.execute(
        "UPDATE engines SET heartbeat_at = clock_timestamp() - make_interval(hours => 1) * %(hours)s", values
    )
    await database.execute(
        "UPDATE model_service SET served_at = clock_timestamp() - make_interval(hours => 1) * %(hours)s",
        values,
    )
    await database.execute(
        "UPDATE videos SET created_at = created_at - make_interval(hours => 1) * (%(hours)s + 1)", values
    )


async def test_waiting_job_says_why_it_waits_and_then_why_it_failed(
    web: httpx.AsyncClient, database: Database, settings: Settings, ready_engine: None
) -> None:
    watch = impatient(settings)
    video_id = (await web.post("/v1/videos", json={"prompt": "a cat"})).json()["id"]
    assert (await web.get(f"/v1/videos/{video_id}")).json()["waiting_reason"] is None
    await look(database, settings, watch)
    await gone(database, 5)
    await asyncio.sleep(0.6)  # a look of the gateway's is shown for half a second
    await look(database, settings, watch)
    told = (await web.get(f"/v1/videos/{video_id}")).json()
    assert told["status"] == "queued"
    assert told["waiting_reason"].startswith("No engine serves 'tiny' since 20")
    assert (await web.get("/v1/videos")).json()["data"][0]["waiting_reason"] == told["waiting_reason"]
    before = FINISHED.labels("failed", "not_served")._value.get()
    await gone(database, 7)
    await asyncio.gather(*(look(database, settings, impatient(settings)) for _ in range(4)))
    assert FINISHED.labels("failed", "not_served")._value.get() == before + 1
    after = (await web.get(f"/v1/videos/{video_id}")).json()
    assert (after["status"], after["error"]["code"]) == ("failed", "not_served")
    assert "its last engine, host/0, is silent" in after["error"]["message"]
    assert after["waiting_reason"] is None


async def test_who_follows_a_job_is_told_when_its_engine_goes(
    web: httpx.AsyncClient, database: Database, ready_engine: None
) -> None:
    video_id = (await web.post("/v1/videos", json={"prompt": "a cat"})).json()["id"]
    reasons: list[str | None] = []
    async with web.stream("GET", f"/v1/videos/{video_id}/events") as events:
        async for line in events.aiter_lines():
            if not line.startswith("data: {"):
                continue
            reasons.append(json.loads(line.removeprefix("data: "))["waiting_reason"])
            if len(reasons) == 1:
                await report(database, EngineState.STOPPED)
            else:
                break
    assert reasons[0] is None
    assert reasons[1] is not None
    assert "its last engine, host/0, was stopped" in reasons[1]


async def test_job_of_a_host_that_is_gone_is_queued_again_by_a_gateway_that_is_alone(
    database: Database, settings: Settings, ready_engine: None
) -> None:
    video = await submit(database, "tiny", request())
    held = await settle.claim(database, video.id, engine_id="host/0", run_id="run")
    assert held is not None
    left = Path(settings.media_directory) / video.id / "1.mp4.part"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"x")
    watch = impatient(settings)
    await look(database, settings, watch, alone_seconds=0.1)
    await gone(database, 1)
    await look(database, settings, watch, alone_seconds=0.1)
    assert (await lookup.find(database, video.id)).state is VideoState.IN_PROGRESS, "not at once"
    await asyncio.sleep(0.15)
    await look(database, settings, watch, alone_seconds=0.1)
    again = await lookup.find(database, video.id)
    assert (again.state, again.tries) == (VideoState.QUEUED, 1)
    assert not left.exists()


async def test_gateway_beside_a_living_supervisor_leaves_jobs_in_progress_to_it(
    database: Database, settings: Settings, ready_engine: None
) -> None:
    video = await submit(database, "tiny", request())
    await settle.claim(database, video.id, engine_id="host/0", run_id="an earlier run")
    await register(database, name="host/1", model="other")
    watch = impatient(settings)
    for _ in range(2):
        await look(database, settings, watch, alone_seconds=0.001)
        await asyncio.sleep(0.01)
    assert (await lookup.find(database, video.id)).state is VideoState.IN_PROGRESS
