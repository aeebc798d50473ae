"""Batches, priorities and deadlines as a client sees them."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from framekeeper.database.pool import Database
from framekeeper.gateway import metrics
from framekeeper.jobs import reconcile, settle
from framekeeper.jobs.video import VideoState

pytestmark = pytest.mark.usefixtures("ready_engine")


async def test_batch_is_accepted_in_order_and_listed(web: httpx.AsyncClient) -> None:
    requests = [{"prompt": f"cat {n}", "priority": "low"} for n in range(5)]
    answer = await web.post("/v1/videos/batch", json={"requests": requests})
    assert answer.status_code == 200
    batch = answer.json()
    assert [video["prompt"] for video in batch["data"]] == [f"cat {n}" for n in range(5)]
    assert {video["batch_id"] for video in batch["data"]} == {batch["batch_id"]}
    await web.post("/v1/videos", json={"prompt": "alone"})
    listed = (await web.get("/v1/videos", params={"batch_id": batch["batch_id"], "order": "asc"})).json()
    assert [video["id"] for video in listed["data"]] == [video["id"] for video in batch["data"]]
    assert (await web.get("/v1/videos", params={"status": "completed"})).json()["data"] == []


async def test_batch_with_one_fault_is_refused_whole(web: httpx.AsyncClient) -> None:
    requests = [{"prompt": "a cat"}, {"prompt": "a cat", "num_frames": 10}]
    answer = await web.post("/v1/videos/batch", json={"requests": requests})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "requests[1].num_frames")
    assert "num_frames=10" in error["message"]
    assert (await web.get("/v1/videos")).json()["data"] == []


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"requests": []}, "requests"),
        ({"requests": [{"prompt": "a"}] * 101}, "requests"),
        ({"requests": "a cat"}, "requests"),
        ({"requests": ["a cat"]}, "requests[0]"),
        ({"requests": [{"prompt": "a"}], "model": "tiny"}, "model"),
    ],
)
async def test_malformed_batch_is_named(web: httpx.AsyncClient, body: dict[str, Any], param: str) -> None:
    answer = await web.post("/v1/videos/batch", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_high_priority_is_offered_first(web: httpx.AsyncClient, database: Database) -> None:
    ids = [
        (await web.post("/v1/videos", json={"prompt": "a cat", "priority": priority})).json()["id"]
        for priority in ("low", "normal", "high")
    ]
    rows = await database.fetch_all(
        "SELECT args ->> 'video_id' AS video FROM procrastinate_jobs ORDER BY priority DESC, id"
    )
    assert [row["video"] for row in rows] == ids[::-1]


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("priority", "urgent", "set low or normal or high"),
        ("priority", 1, "set low or normal or high"),
        ("deadline", 0, "too small"),
        ("deadline", "soon", "not a number"),
        ("deadline", "2030-01-01", "or a moment such as 20"),
        ("deadline", 1e9, "more than 2592000: set seconds from now"),
        ("deadline", "2020-01-01T00:00:00Z", "in the past"),
        ("deadline", "2030-01-01T00:00:00", "offset"),
        ("deadline", "2999-01-01T00:00:00Z", "days away"),
    ],
)
async def test_wrong_wish_is_named(web: httpx.AsyncClient, field: str, value: Any, reason: str) -> None:
    answer = await web.post("/v1/videos", json={"prompt": "a cat", field: value})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, field)
    assert reason in error["message"]


async def test_deadline_is_seconds_or_a_moment(web: httpx.AsyncClient) -> None:
    soon = (await web.post("/v1/videos", json={"prompt": "a cat", "deadline": 90})).json()
    assert 80 < soon["deadline_at"] - time.time() < 95
    moment = (datetime.now(UTC) + timedelta(hours=2)).replace(microsecond=0)
    form = {"prompt": (None, "a cat"), "deadline": (None, moment.isoformat())}
    assert (await web.post("/v1/videos", files=form)).json()["deadline_at"] == int(moment.timestamp())


async def test_waiting_job_fails_at_its_deadline(web: httpx.AsyncClient, database: Database) -> None:
    late = (await web.post("/v1/videos", json={"prompt": "a cat", "deadline": 0.2})).json()["id"]
    other = (await web.post("/v1/videos", json={"prompt": "a cat", "deadline": 900})).json()["id"]
    await asyncio.sleep(0.3)
    assert [video.id for video in await reconcile.fail_overdue(database)] == [late]
    answer = (await web.get(f"/v1/videos/{late}")).json()
    assert (answer["status"], answer["error"]["code"]) == ("failed", "deadline_exceeded")
    assert (await web.get(f"/v1/videos/{other}")).json()["status"] == "queued"


async def test_video_that_is_done_too_late_is_failed(web: httpx.AsyncClient, database: Database) -> None:
    late = (await web.post("/v1/videos", json={"prompt": "a cat", "deadline": 0.2})).json()["id"]
    held = await settle.claim(database, late, engine_id="host/0", run_id="run")
    assert held is not None
    await asyncio.sleep(0.3)
    after = await settle.complete(
        database, held, video_file="1.mp4", thumbnail_file="1.jpg", size=1, facts={}
    )
    assert after is not None
    assert (after.state, after.error_code) == (VideoState.FAILED, "deadline_exceeded")


async def test_what_is_cancelled_or_deleted_in_line_is_counted_once(web: httpx.AsyncClient) -> None:
    def finished() -> float:
        return float(metrics.FINISHED.labels("cancelled", "")._value.get())

    ids = [(await web.post("/v1/videos", json={"prompt": "a cat"})).json()["id"] for _ in range(2)]
    before = finished()
    for _ in range(2):
        assert (await web.post(f"/v1/videos/{ids[0]}/cancel")).status_code == 200
    assert finished() == before + 1
    assert (await web.delete(f"/v1/videos/{ids[1]}")).status_code == 200
    assert (await web.delete(f"/v1/videos/{ids[0]}")).status_code == 200
    assert finished() == before + 2
