"""Server-sent events: what a follower is told, and when it ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from framekeeper.database.pool import Database
from framekeeper.errors import EngineFailed, VideoNotFound
from framekeeper.gateway.changes import Changes
from framekeeper.jobs import cancel, settle
from framekeeper.jobs.submit import Terms, submit
from framekeeper.jobs.video import Video
from jobs.records import request

pytestmark = pytest.mark.usefixtures("ready_engine")


async def read(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    """The events of a stream, as they come; comments are left out."""
    event: dict[str, Any] = {}
    async for line in response.aiter_lines():
        if not line:
            if event:
                yield event
            event = {}
        elif not line.startswith(":"):
            name, _, value = line.partition(": ")
            event[name] = value


def data(event: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(event["data"])
    return found


async def claimed(database: Database) -> Video:
    video = await submit(database, "tiny", request())
    held = await settle.claim(database, video.id, engine_id="host/0", run_id="run")
    assert held is not None
    return held


async def complete(database: Database, held: Video) -> None:
    await settle.complete(database, held, video_file="1.mp4", thumbnail_file="1.jpg", size=1, facts={})


async def test_follower_hears_of_every_step_and_the_end(web: httpx.AsyncClient, database: Database) -> None:
    held = await claimed(database)
    seen: list[dict[str, Any]] = []
    async with asyncio.timeout(15), web.stream("GET", f"/v1/videos/{held.id}/events") as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        async for event in read(response):
            seen.append(event)
            if event["event"] == "end":
                break
            step = data(event)["step"]
            if data(event)["status"] == "in_progress":
                if step < 6:
                    await settle.report(database, held, phase="denoising", step=step + 1, steps=6)
                else:
                    await complete(database, held)
    steps = [data(event)["step"] for event in seen if event["event"] == "video"]
    assert steps == [0, 1, 2, 3, 4, 5, 6, 6]
    assert (data(seen[-2])["status"], data(seen[-2])["progress"]) == ("completed", 100)
    assert seen[-1]["data"] == "completed"
    ids = [int(event["id"]) for event in seen[:-1]]
    assert ids == sorted(set(ids))


async def test_last_event_id_skips_what_the_client_has(web: httpx.AsyncClient, database: Database) -> None:
    held = await claimed(database)
    path = f"/v1/videos/{held.id}/events"
    async with asyncio.timeout(15), web.stream("GET", path) as response:
        first = await anext(read(response))
    headers = {"Last-Event-ID": first["id"]}
    async with asyncio.timeout(15), web.stream("GET", path, headers=headers) as response:
        events = read(response)
        waiting = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0.5)
        assert not waiting.done()
        await settle.report(database, held, phase="denoising", step=2, steps=6)
        assert data(await waiting)["step"] == 2
    async with asyncio.timeout(15), web.stream("GET", path, headers=headers) as response:
        assert data(await anext(read(response)))["step"] == 2


async def test_final_job_is_told_once_and_ends(web: httpx.AsyncClient, database: Database) -> None:
    held = await claimed(database)
    await settle.fail(database, held, EngineFailed("It broke."))
    async with asyncio.timeout(15), web.stream("GET", f"/v1/videos/{held.id}/events") as response:
        events = [event async for event in read(response)]
    assert [event["event"] for event in events] == ["video", "end"]
    assert data(events[0])["error"] == {"code": "engine_failed", "message": "It broke."}


async def test_stream_of_a_deleted_job_ends(web: httpx.AsyncClient, database: Database) -> None:
    video = await submit(database, "tiny", request())
    async with asyncio.timeout(15), web.stream("GET", f"/v1/videos/{video.id}/events") as response:
        events = read(response)
        assert data(await anext(events))["status"] == "queued"
        await cancel.delete(database, video.id)
        assert await anext(events) == {"event": "end", "data": "deleted"}


async def test_job_that_its_owner_follows_is_found_by_nobody_else(database: Database) -> None:
    changes = Changes(database)
    video = await submit(database, "tiny", request(), Terms(owner="key_a"))
    followed = changes.follow(video.id, every=1)
    try:
        assert (await anext(followed)) == video
        for sees in ("key_a", None):
            assert await changes.find(video.id, sees=sees) == video
        with pytest.raises(VideoNotFound):
            await changes.find(video.id, sees="key_b")
    finally:
        await followed.aclose()
        await changes.close()


async def test_unknown_job_has_no_stream(web: httpx.AsyncClient) -> None:
    assert (await web.get("/v1/videos/video_" + "0" * 32 + "/events")).status_code == 404


async def test_followers_go_on_after_the_listening_connection_is_cut(
    web: httpx.AsyncClient, database: Database
) -> None:
    held = await claimed(database)
    async with asyncio.timeout(20), web.stream("GET", f"/v1/videos/{held.id}/events") as response:
        events = read(response)
        await anext(events)
        # The first event may come before the connection is there.
        while not await database.fetch_all(  # noqa: ASYNC110  (PostgreSQL tells nobody)
            """
            SELECT pg_terminate_backend(pid) FROM pg_stat_activity
            WHERE application_name = 'framekeeper-changes' AND datname = current_database()
            """
        ):
            await asyncio.sleep(0.05)
        await settle.report(database, held, phase="denoising", step=3, steps=6)
        assert data(await anext(events))["step"] == 3


async def test_many_followers_share_one_listening_connection(
    web: httpx.AsyncClient, url: str, database: Database
) -> None:
    held = await claimed(database)
    limits = httpx.Limits(max_connections=100)
    async with httpx.AsyncClient(base_url=url, timeout=20, limits=limits) as client:
        following: list[list[int]] = [[] for _ in range(50)]

        async def follow(steps: list[int]) -> None:
            async with client.stream("GET", f"/v1/videos/{held.id}/events") as response:
                async for event in read(response):
                    if event["event"] == "video":
                        steps.append(data(event)["step"])

        async def all_heard(step: int) -> None:
            async with asyncio.timeout(20):
                while not all(step in steps for steps in following):  # noqa: ASYNC110  (fifty streams)
                    await asyncio.sleep(0.05)

        tasks = [asyncio.create_task(follow(steps)) for steps in following]
        await all_heard(0)
        rows = await database.fetch_all(
            """
            SELECT pid FROM pg_stat_activity
            WHERE application_name = 'framekeeper-changes' AND datname = current_database()
            """
        )
        assert len(rows) == 1
        await settle.report(database, held, phase="denoising", step=4, steps=6)
        await all_heard(4)
        await complete(database, held)
        async with asyncio.timeout(20):
            await asyncio.gather(*tasks)
    assert all(steps == [0, 4, 6] for steps in following)
