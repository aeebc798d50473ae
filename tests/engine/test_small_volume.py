"""A media directory on a volume of a few megabytes: never full, and no job is made without a place for it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from faulty import Start, final, found, submitted
from system import System, wait_for
from volume import mount, mounted

pytestmark = pytest.mark.slow

MIB = 1 << 20
VOLUME, FREE = 5 * MIB, 4 * MIB


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Path]:
    yield from mounted(tmp_path / "volume", VOLUME)


def test_jobs_are_refused_before_the_volume_is_full_and_those_accepted_are_delivered(
    start: Start, volume: Path
) -> None:
    system = start([], script={"step_seconds": 0.05}, media=volume, min_free_bytes=FREE)
    url = system.start_gateway()
    accepted: list[str] = []
    body = {"prompt": "a cat", "size": "128x128", "num_frames": 33, "num_inference_steps": 2}
    least = VOLUME
    with httpx.Client(base_url=url, timeout=20) as client:

        def refused() -> httpx.Response | None:
            nonlocal least
            answer = client.post("/v1/videos", json=body)
            least = min(least, shutil.disk_usage(volume).free)
            if answer.status_code == 200:
                accepted.append(answer.json()["id"])
                return None
            return answer

        answer = wait_for("a job is refused", refused, 60, every=0.01)
        assert (answer.status_code, answer.json()["error"]["code"]) == (507, "storage_full")
        assert "delete videos" in answer.json()["error"]["message"]
        assert len(accepted) >= 2
        for video_id in accepted:
            assert final(system, video_id, 60).state == "completed"
        least = min(least, shutil.disk_usage(volume).free)
        assert least >= FREE
        # Room again, once the owner has deleted what is not needed.
        (volume / "filler").write_bytes(b"x" * (shutil.disk_usage(volume).free - FREE // 2))
        assert client.post("/v1/videos", json=body).status_code == 507
        (volume / "filler").unlink()
        for video_id in accepted:
            assert client.delete(f"/v1/videos/{video_id}").status_code == 200
            assert not (volume / video_id).exists()
        again = client.post("/v1/videos", json=body)
        assert again.status_code == 200
        assert final(system, again.json()["id"]).state == "completed"
        assert found(system, again.json()["id"]).video_file is not None


def unready(url: str) -> str:
    """The reasons that the gateway gives; empty when it is ready."""
    answer = httpx.get(f"{url}/health/ready", timeout=10)
    return "" if answer.status_code == 200 else " ".join(answer.json()["reasons"])


def waits_blocked(system: System, video_id: str, words: str) -> None:
    """The job is told why it waits, and no engine begins it."""
    url = system.urls[0]
    wait_for("the engine is blocked", lambda: system.engine()["state"] == "blocked", 15)
    told = wait_for(
        "the reason", lambda: httpx.get(f"{url}/v1/videos/{video_id}").json()["waiting_reason"], 10
    )
    assert "test-host/0 is blocked" in told
    assert words in told
    assert words in unready(url)
    assert words in system.engine()["detail"]
    assert system.supervisor_says()["http"] == 503
    assert system.supervisor_says("/health/live")["http"] == 200
    waiting = found(system, video_id)
    assert (waiting.state, waiting.attempt) == ("queued", 0)


def test_job_waits_with_the_reason_while_the_volume_is_read_only_and_is_made_after_it(
    start: Start, volume: Path
) -> None:
    system = start([], script={"step_seconds": 0.05}, media=volume, min_free_bytes=0)
    system.urls = [system.start_gateway()]
    assert unready(system.urls[0]) == ""
    mount("-o", "remount,ro", str(volume))
    video_id = submitted(system)  # at once: before the engine has looked by itself
    waits_blocked(system, video_id, "is mounted read-only")
    mount("-o", "remount,rw", str(volume))
    made = final(system, video_id)
    assert (made.state, made.attempt, made.tries) == ("completed", 1, 1)
    assert unready(system.urls[0]) == ""


def test_job_waits_with_the_reason_while_others_fill_the_volume(start: Start, volume: Path) -> None:
    system = start([], script={"step_seconds": 0.05}, media=volume, min_free_bytes=FREE)
    system.urls = [system.start_gateway()]
    (volume / "filler").write_bytes(b"x" * (VOLUME - FREE // 8))
    wait_for("an idle engine notices by itself", lambda: system.engine()["state"] == "blocked", 15)
    video_id = submitted(system)
    waits_blocked(system, video_id, "MiB free")
    (volume / "filler").unlink()
    made = final(system, video_id)
    assert (made.state, made.attempt) == ("completed", 1)
