"""POST /v1/videos/sync, and deadlines of running jobs, against the real supervisor."""

from __future__ import annotations

import time
from pathlib import Path

import httpx
import pytest

from faulty import Start, final, found
from framekeeper.media.encode import read_video
from system import wait_for

pytestmark = pytest.mark.slow

BODY = {"prompt": "a cat", "size": "64x64", "num_frames": 9, "num_inference_steps": 10}


def test_sync_answers_with_the_video(start: Start, tmp_path: Path) -> None:
    system = start([])
    url = system.start_gateway()
    answer = httpx.post(f"{url}/v1/videos/sync", json=BODY, timeout=60)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "video/mp4")
    path = tmp_path / "out.mp4"
    path.write_bytes(answer.content)
    assert read_video(path).shape == (9, 64, 64, 3)
    assert httpx.get(f"{url}/v1/videos/{answer.headers['x-video-id']}").json()["status"] == "completed"


def test_sync_of_a_failing_job_says_why_and_is_not_to_be_repeated(start: Start) -> None:
    system = start([{"at": "step", "what": "refuse", "message": "seed is odd"}])
    url = system.start_gateway()
    answer = httpx.post(f"{url}/v1/videos/sync", json=BODY, timeout=60)
    assert answer.status_code >= 400
    assert answer.headers["x-should-retry"] == "false"
    assert answer.json()["error"]["code"] == "refused_by_engine"
    assert found(system, answer.headers["x-video-id"]).state == "failed"


def test_client_that_goes_away_cancels_the_job(start: Start) -> None:
    system = start([], script={"step_seconds": 0.3})
    url = system.start_gateway()
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{url}/v1/videos/sync", json=BODY, timeout=1.2)
    (video,) = httpx.get(f"{url}/v1/videos").json()["data"]
    assert final(system, video["id"]).state == "cancelled"


def test_sync_that_takes_too_long_names_the_job_which_goes_on(start: Start) -> None:
    system = start([], script={"step_seconds": 0.3})
    url = system.start_gateway(sync_seconds=1)
    answer = httpx.post(f"{url}/v1/videos/sync", json=BODY, timeout=60)
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "still_being_made")
    assert final(system, answer.headers["x-video-id"]).state == "completed"


def test_running_job_is_stopped_at_its_deadline(start: Start) -> None:
    system = start([], script={"step_seconds": 0.4})
    url = system.start_gateway()
    begin = time.monotonic()
    video_id = httpx.post(f"{url}/v1/videos", json=BODY | {"deadline": 1.2}).json()["id"]
    video = final(system, video_id)
    assert (video.state, video.error_code) == ("failed", "deadline_exceeded")
    assert time.monotonic() - begin < 3.5
    assert video.step < 10
    # The engine is free for the next.
    assert final(system, httpx.post(f"{url}/v1/videos", json=BODY).json()["id"]).state == "completed"


def test_gateway_with_followers_stops_at_once(start: Start) -> None:
    system = start([], script={"step_seconds": 1})
    url = system.start_gateway()
    video_id = httpx.post(f"{url}/v1/videos", json=BODY).json()["id"]
    with httpx.stream("GET", f"{url}/v1/videos/{video_id}/events", timeout=20) as response:
        lines = response.iter_lines()
        next(lines)
        (gateway,) = system.gateways.values()
        begin = time.monotonic()
        gateway.terminate()
        for _ in lines:
            pass
        wait_for("the gateway ends", lambda: gateway.poll() is not None, 20)
    assert time.monotonic() - begin < 8
