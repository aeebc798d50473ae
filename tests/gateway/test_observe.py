"""Metrics of bounded size, over all processes; log lines that belong to their request."""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.types import Receive, Scope, Send

from framekeeper.gateway.observe import Observe
from system import wait_for


def series(http: httpx.Client, name: str) -> dict[str, float]:
    lines = http.get("/metrics").text.splitlines()
    return {
        key: float(value) for key, value in (line.rsplit(" ", 1) for line in lines if line.startswith(name))
    }


def test_requests_are_counted_by_template_and_not_by_id(shared_http: httpx.Client) -> None:
    def count() -> dict[str, float]:
        return series(shared_http, "framekeeper_http_requests_total")

    before = count()
    for number in range(3):
        shared_http.get(f"/v1/videos/video_{number:032x}")
        shared_http.get(f"/nowhere/{number}")
        shared_http.request(f"BREW{number}", "/v1/videos")
    after = count()
    grown = {key: value - before.get(key, 0) for key, value in after.items() if value != before.get(key, 0)}
    found = {
        tuple(re.findall(r'"([^"]*)"', key)): value for key, value in grown.items() if "/metrics" not in key
    }
    assert found == {
        ("GET", "/v1/videos/{video_id}", "404"): 3,
        ("GET", "unmatched", "404"): 3,
        ("other", "/v1/videos", "405"): 3,
    }


def test_accepted_videos_are_counted_by_model(shared_http: httpx.Client) -> None:
    key = 'framekeeper_videos_accepted_total{model="tiny"}'
    before = series(shared_http, key).get(key, 0)
    shared_http.post("/v1/videos", json={"prompt": "a cat"})
    shared_http.post("/v1/videos", json={"prompt": ""})
    assert series(shared_http, key)[key] == before + 1


def test_log_line_has_request_id_and_route_and_no_prompt(
    shared_http: httpx.Client, log_lines: io.StringIO
) -> None:
    made = shared_http.post("/v1/videos", json={"prompt": "a secret cat"}, headers={"x-request-id": "mine"})

    def mine() -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in log_lines.getvalue().splitlines()]
        return [line for line in lines if line.get("request_id") == "mine"]

    (line,) = wait_for("the line, written after the answer's last byte", mine, 5)
    assert (line["route"], line["method"], line["status"]) == ("/v1/videos", "POST", 200)
    assert line["video_id"] == made.json()["id"]
    assert "secret cat" not in log_lines.getvalue()


def test_metrics_of_all_processes_are_added_up(tmp_path: Path) -> None:
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    observe = "from framekeeper.gateway import metrics; metrics.observe('/x', 'GET', 200, 0.1)"
    for code in (observe, observe, f"{observe}; print(metrics.exposition().decode())"):
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True
        )
    assert 'framekeeper_http_requests_total{method="GET",route="/x",status="200"} 3.0' in done.stdout


async def call(app: Any, seconds: float) -> httpx.Response:
    transport = httpx.ASGITransport(Observe(app, answer_seconds=seconds), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        return await client.get("/")


async def test_request_that_gets_no_answer_in_time_is_503() -> None:
    async def hang(scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.sleep(60)

    answer = await call(hang, 0.05)
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "database_unavailable"
    assert answer.headers["retry-after"]


async def test_application_that_answers_its_own_cancellation_is_heard() -> None:
    async def answer_late(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await PlainTextResponse("late", 503)(scope, receive, send)

    assert (await call(answer_late, 0.05)).text == "late"


async def test_answer_that_began_in_time_may_take_longer() -> None:
    async def slowly() -> Any:
        for _ in range(3):
            yield b"x"
            await asyncio.sleep(0.05)

    assert (await call(StreamingResponse(slowly()), 0.1)).content == b"xxx"


async def test_failing_application_is_answered_in_the_same_shape() -> None:
    async def fail(scope: Scope, receive: Receive, send: Send) -> None:
        raise ValueError("internal detail")

    answer = await call(fail, 1)
    assert answer.status_code == 500
    assert "internal detail" not in answer.text
    assert answer.json()["error"]["code"] == "internal_error"


async def test_failure_in_the_middle_of_an_answer_breaks_it_off() -> None:
    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011
        await Observe(broken)({"type": "http", "method": "GET", "headers": []}, None, _ignore)  # type: ignore[arg-type]


async def _ignore(message: Any) -> None:
    pass


async def test_metrics_survive_a_plain_application() -> None:
    assert (await call(PlainTextResponse("fine"), 1)).text == "fine"


def test_who_listens_to_events_is_counted_while_it_does(shared_http: httpx.Client) -> None:
    def listeners(wanted: float) -> bool:
        return series(shared_http, "framekeeper_event_listeners") == {"framekeeper_event_listeners": wanted}

    video_id = shared_http.post("/v1/videos", json={"prompt": "a cat"}).json()["id"]
    with shared_http.stream("GET", f"/v1/videos/{video_id}/events") as answer:
        lines = answer.iter_lines()  # closes the answer when it is forgotten
        next(lines)
        wait_for("one listens", lambda: listeners(1), 5)
    wait_for("nobody listens", lambda: listeners(0), 5)
