"""Whatever comes from outside, the number of series stays bounded."""

from __future__ import annotations

import secrets

import httpx
import pytest
from fastapi import FastAPI
from prometheus_client import REGISTRY, CollectorRegistry, generate_latest

from framekeeper import metrics
from framekeeper.gateway import errors as gateway_errors
from framekeeper.gateway import metrics as of_gateway
from framekeeper.gateway.observe import Observe

HOSTILE = [
    "",
    "x" * 10_000,
    'a"b',
    "a\nb",
    "a\\b",
    "é\u202e",
    "{}",
    "completed",
    *(f"n{n}" for n in range(50)),
]


def count(registry: CollectorRegistry) -> int:
    return sum(1 for line in generate_latest(registry).splitlines() if not line.startswith(b"#"))


def test_an_unknown_signature_or_reason_is_other() -> None:
    for text in HOSTILE:
        metrics.count_incident(text)
        metrics.count_finished("failed", text)
    before = count(metrics.registry)
    for _ in range(200):
        metrics.count_incident(secrets.token_hex())
        metrics.count_finished("failed", secrets.token_hex())
    assert count(metrics.registry) == before
    text = generate_latest(metrics.registry).decode()
    assert 'framekeeper_incidents_total{signature="other"}' in text
    assert 'framekeeper_videos_finished_total{reason="other",state="failed"}' in text


def test_an_unknown_reason_of_a_refusal_is_other_and_other_routes_do_not_count() -> None:
    for text in HOSTILE:
        of_gateway.refused("/v1/videos", "POST", text)
    before = count(REGISTRY)
    for _ in range(200):
        of_gateway.refused("/v1/videos", "POST", secrets.token_hex())
        of_gateway.refused(f"/{secrets.token_hex()}", "POST", "no_engine")
        of_gateway.refused("/v1/videos", secrets.token_hex(), "no_engine")
    assert count(REGISTRY) == before


@pytest.fixture
def app() -> FastAPI:
    app = FastAPI(openapi_url=None)
    app.add_middleware(Observe)
    gateway_errors.install(app)

    @app.get("/v1/videos/{video_id}")
    async def one(video_id: str) -> str:
        return video_id

    return app


async def test_hostile_paths_methods_and_headers_make_no_series(app: FastAPI) -> None:
    async def ask(number: int) -> None:
        noise = secrets.token_hex()
        await client.get(f"/v1/videos/{noise}?{noise}={noise}", headers={"x-request-id": noise})
        await client.get(f"/{noise}/{noise}")
        await client.request(f"M{noise[:8].upper()}", f"/v1/videos/{noise}")
        await client.get(f"/v1/videos/%0a{noise}", headers={"host": noise, "user-agent": noise})

    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as client:
        await ask(0)
        before = count(REGISTRY)
        for number in range(100):
            await ask(number)
    assert count(REGISTRY) == before
