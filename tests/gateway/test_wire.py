"""What goes over the wire, as stored files: a change of an answer shows in review.

Write them anew with FRAMEKEEPER_WRITE_WIRE=1 and look at the difference.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from framekeeper.database.pool import Database
from framekeeper.errors import EngineFailed
from framekeeper.jobs import settle
from framekeeper.settings import Settings
from gateway.test_openai_client import claim, complete

pytestmark = pytest.mark.usefixtures("ready_engine")

WIRE = Path(__file__).parent / "wire"
#: What differs from run to run, and what stands for it.
CHANGING = (
    (re.compile(r"video_[0-9a-f]{32}"), "VIDEO"),
    (re.compile(r"batch_[0-9a-f]{32}"), "BATCH"),
)
MOMENTS = ("created", "created_at", "started_at", "completed_at", "deadline_at", "ready_at")
SECONDS = ("seconds", "phase_seconds", "silent_seconds")
SEED = {"prompt": "a cat", "seed": 7}


def masked(value: Any, name: str = "") -> Any:
    if isinstance(value, dict):
        return {key: masked(each, key) for key, each in value.items()}
    if isinstance(value, list):
        return [masked(each, name) for each in value]
    if name in MOMENTS and isinstance(value, int):
        return "MOMENT"
    if name in SECONDS and isinstance(value, float):
        return "SECONDS"
    if isinstance(value, str):
        for pattern, word in CHANGING:
            value = pattern.sub(word, value)
    return value


def compare(name: str, found: Any) -> None:
    path = WIRE / f"{name}.json"
    if os.environ.get("FRAMEKEEPER_WRITE_WIRE"):
        WIRE.mkdir(exist_ok=True)
        path.write_text(json.dumps(found, indent=2) + "\n")
    assert found == json.loads(path.read_text()), f"{path.name} differs: see the first lines of this file"


def answer_of(response: httpx.Response) -> dict[str, Any]:
    return {"status": response.status_code, "body": masked(response.json())}


async def test_life_of_a_video(web: httpx.AsyncClient, database: Database, settings: Settings) -> None:
    seen = {"created": await web.post("/v1/videos", json=SEED)}
    path = f"/v1/videos/{seen['created'].json()['id']}"
    held = await claim(database, path.rpartition("/")[2])
    await settle.report(database, held, phase="denoising", step=3, steps=6)
    seen["running"] = await web.get(path)
    await complete(database, held, settings.media_directory)
    seen["completed"] = await web.get(path)
    seen["listed"] = await web.get("/v1/videos")
    seen["deleted"] = await web.delete(path)
    seen["gone"] = await web.get(path)
    compare("video", {name: answer_of(answer) for name, answer in seen.items()})


async def test_events_of_a_failing_video(web: httpx.AsyncClient, database: Database) -> None:
    made = (await web.post("/v1/videos", json=SEED)).json()["id"]
    await settle.fail(database, await claim(database, made), EngineFailed("Out of memory."))
    text = (await web.get(f"/v1/videos/{made}/events")).text
    events = [
        dict(line.split(": ", 1) for line in each.splitlines()) for each in text.split("\r\n\r\n") if each
    ]
    for event in events:
        if event["event"] == "video":
            event["data"] = masked(json.loads(event["data"]))
    compare("events", events)


async def test_batch_and_cancel(web: httpx.AsyncClient) -> None:
    batch = await web.post("/v1/videos/batch", json={"requests": [{**SEED, "priority": "low"}]})
    first = batch.json()["data"][0]["id"]
    cancelled = await web.post(f"/v1/videos/{first}/cancel")
    compare("batch", {"batch": answer_of(batch), "cancelled": answer_of(cancelled)})


async def test_what_is_served(web: httpx.AsyncClient) -> None:
    paths = ("/v1/models", "/v1/queue", "/v1/engines", "/v1/incidents", "/health/live")
    compare("served", {path: answer_of(await web.get(path)) for path in paths})


async def test_refusals(web: httpx.AsyncClient) -> None:
    refused = {
        "field": await web.post("/v1/videos", json={"prompt": "a cat", "num_frames": 10}),
        "body": await web.post("/v1/videos", content=b"x", headers={"Content-Type": "text/plain"}),
        "query": await web.get("/v1/videos", params={"limit": 0}),
        "path": await web.get("/v1/nothing"),
        "method": await web.put("/v1/videos"),
        "video": await web.get("/v1/videos/none"),
        "model": await web.get("/v1/models/none"),
    }
    compare("refusals", {name: answer_of(answer) for name, answer in refused.items()})


async def test_description(web: httpx.AsyncClient) -> None:
    document = (await web.get("/openapi.json")).json()
    calls = {
        f"{method.upper()} {path}": {
            "parameters": [f"{each['in']} {each['name']}" for each in operation.get("parameters", [])],
            "bodies": list(operation.get("requestBody", {}).get("content", {})),
            "answers": list(operation["responses"]),
        }
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }
    schemas = {
        name: list(schema.get("properties", schema.get("enum", [])))
        for name, schema in document["components"]["schemas"].items()
    }
    compare("description", {"calls": calls, "schemas": dict(sorted(schemas.items()))})
    references = set(re.findall(r'"\$ref": ?"#/components/schemas/([^"]+)"', json.dumps(document)))
    assert references <= set(schemas)
