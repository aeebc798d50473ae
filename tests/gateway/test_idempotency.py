"""Idempotency-Key: one job, however often and wherever it is asked for."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from framekeeper.database.pool import Database
from framekeeper.jobs import settle
from framekeeper.settings import Settings
from gateway.serving import served

pytestmark = pytest.mark.usefixtures("ready_engine")

KEY = {"Idempotency-Key": "order-17"}
BODY = {"prompt": "a cat"}


async def jobs(database: Database) -> int:
    row = await database.fetch_one("SELECT count(*) AS jobs FROM videos")
    assert row is not None
    return int(row["jobs"])


async def test_repeated_request_gives_the_same_job(web: httpx.AsyncClient, database: Database) -> None:
    first = await web.post("/v1/videos", json=BODY, headers=KEY)
    again = await web.post(
        "/v1/videos", content=b'{"prompt":  "a cat"}', headers=KEY | {"Content-Type": "application/json"}
    )
    assert (first.status_code, again.status_code) == (200, 200)
    assert first.json()["id"] == again.json()["id"]
    assert ("idempotent-replayed" in first.headers, again.headers["idempotent-replayed"]) == (False, "true")
    assert await jobs(database) == 1
    assert (await web.post("/v1/videos", json=BODY)).json()["id"] != first.json()["id"]


async def test_other_body_with_a_used_key_is_refused(web: httpx.AsyncClient, database: Database) -> None:
    await web.post("/v1/videos", json=BODY, headers=KEY)
    for path, body in (("/v1/videos", {"prompt": "a dog"}), ("/v1/videos/batch", {"requests": [BODY]})):
        answer = await web.post(path, json=body, headers=KEY)
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "idempotency_key_reused")
        assert answer.headers["x-should-retry"] == "false"
    assert await jobs(database) == 1


async def test_race_over_two_gateways_makes_one_job(settings: Settings, url: str, database: Database) -> None:
    with served(settings) as other:
        async with httpx.AsyncClient(timeout=30) as client:
            answers = await asyncio.gather(
                *(client.post(f"{base}/v1/videos", json=BODY, headers=KEY) for base in (url, other) * 10)
            )
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert sum("idempotent-replayed" not in answer.headers for answer in answers) == 1
    assert await jobs(database) == 1


async def test_refused_request_leaves_its_key_free(web: httpx.AsyncClient) -> None:
    assert (await web.post("/v1/videos", json={"prompt": ""}, headers=KEY)).status_code == 400
    assert (await web.post("/v1/videos", json=BODY, headers=KEY)).status_code == 200


@pytest.mark.parametrize("key", ["", "with space", "x" * 256])
async def test_unusable_key_is_named(web: httpx.AsyncClient, key: str) -> None:
    answer = await web.post("/v1/videos", json=BODY, headers={"Idempotency-Key": key})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "Idempotency-Key"


async def test_two_keys_are_as_wrong_in_two_headers_as_in_one(
    web: httpx.AsyncClient, database: Database
) -> None:
    both = [("Idempotency-Key", "order-17"), ("Idempotency-Key", "order-18")]
    answer = await web.post("/v1/videos", json=BODY, headers=both)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "Idempotency-Key")
    assert "'order-17, order-18'" in answer.json()["error"]["message"]
    assert await jobs(database) == 0


async def test_key_is_forgotten_after_its_time(web: httpx.AsyncClient, database: Database) -> None:
    first = (await web.post("/v1/videos", json=BODY, headers=KEY)).json()["id"]
    async with database.transaction() as connection:
        await connection.execute("UPDATE idempotency_keys SET created_at = created_at - interval '2 days'")
    answer = await web.post("/v1/videos", json={"prompt": "a dog"}, headers=KEY)
    assert answer.status_code == 200
    assert answer.json()["id"] != first


@pytest.mark.parametrize("running", [False, True])
async def test_deleted_video_is_not_made_again_by_its_key(
    web: httpx.AsyncClient, database: Database, running: bool
) -> None:
    video_id = (await web.post("/v1/videos", json=BODY, headers=KEY)).json()["id"]
    if running:
        assert await settle.claim(database, video_id, engine_id="host/0", run_id="run") is not None
    assert (await web.delete(f"/v1/videos/{video_id}")).status_code == 200
    answer = await web.post("/v1/videos", json=BODY, headers=KEY)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (410, "video_deleted", "Idempotency-Key")
    assert f"Idempotency-Key='order-17' has made {video_id}, which was deleted since" in error["message"]
    assert await jobs(database) == int(running)  # its row goes when the engine has let go
    assert (await web.post("/v1/videos", json={"prompt": "a dog"}, headers=KEY)).status_code == 409
    assert (await web.post("/v1/videos", json=BODY, headers={"Idempotency-Key": "18"})).status_code == 200


async def test_batch_of_which_one_was_deleted_tells_which_and_where_the_others_are(
    web: httpx.AsyncClient, database: Database
) -> None:
    batch = {"requests": [BODY, {"prompt": "a dog"}]}
    made = (await web.post("/v1/videos/batch", json=batch, headers=KEY)).json()["data"]
    gone, left = (each["id"] for each in made)
    await web.delete(f"/v1/videos/{gone}")
    answer = await web.post("/v1/videos/batch", json=batch, headers=KEY)
    assert (answer.status_code, answer.json()["error"]["code"]) == (410, "video_deleted")
    message = answer.json()["error"]["message"]
    assert f"has made {gone}, which was deleted" in message
    assert f"Of its 2 videos the others are there: {left}." in message
    assert await jobs(database) == 1
