"""POST a prompt, get a video: the official client, two gateways, the real vllm-omni."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from framekeeper.media.encode import read_video
from framekeeper.media.inspect import inspect
from sheet import frames_of_sheet
from system import PROJECT, System, wait_for

pytestmark = pytest.mark.filterwarnings("ignore:The Sora API:DeprecationWarning")

#: A job of some seconds on two cores: the largest shape, so that there is time to interfere.
LONG = {"size": "128x128", "num_frames": 49, "num_inference_steps": 50}


def client(system: System, gateway: int = 0) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{system.urls[gateway]}/v1", api_key="unused", max_retries=0)


def create(system: System, gateway: int = 0, **fields: Any) -> dict[str, Any]:
    answer = httpx.post(f"{system.urls[gateway]}/v1/videos", json={"prompt": "a cat walks", **fields})
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def get(system: System, video_id: str, gateway: int = 0) -> dict[str, Any]:
    body: dict[str, Any] = httpx.get(f"{system.urls[gateway]}/v1/videos/{video_id}").json()
    return body


def final(system: System, video_id: str, seconds: float = 120) -> dict[str, Any]:
    def done() -> dict[str, Any] | None:
        video = get(system, video_id)
        return video if video["status"] in ("completed", "failed", "cancelled") else None

    video: dict[str, Any] = wait_for("the job is final", done, seconds)
    return video


def at_step(system: System, video_id: str, step: int) -> dict[str, Any]:
    video: dict[str, Any] = wait_for(
        f"step {step}", lambda: (v := get(system, video_id))["step"] >= step and v, 60, every=0.01
    )
    return video


def frames_of(system: System, video_id: str, tmp_path: Path) -> np.ndarray[Any, np.dtype[np.uint8]]:
    content = httpx.get(f"{system.urls[0]}/v1/videos/{video_id}/content")
    assert content.status_code == 200
    assert content.headers["content-type"] == "video/mp4"
    (tmp_path / "out.mp4").write_bytes(content.content)
    return read_video(tmp_path / "out.mp4")


def test_official_client_gets_a_decodable_video(system: System, tmp_path: Path) -> None:
    openai_client = client(system)
    video = openai_client.videos.create_and_poll(
        prompt="two robots box under a spotlight", size="96x64", seconds="2", poll_interval_ms=50
    )
    assert (video.status, video.progress, video.error) == ("completed", 100, None)
    openai_client.videos.download_content(video.id).write_to_file(tmp_path / "out.mp4")
    frames = read_video(tmp_path / "out.mp4")
    assert frames.shape == (17, 64, 96, 3)
    assert inspect(frames).fault is None
    thumbnail = openai_client.videos.download_content(video.id, variant="thumbnail")
    assert thumbnail.content[:2] == b"\xff\xd8"
    sheet = openai_client.videos.download_content(video.id, variant="spritesheet")
    assert sheet.content[:2] == b"\xff\xd8"
    assert video.id in [each.id for each in openai_client.videos.list()]
    assert openai_client.videos.delete(video.id).deleted
    with pytest.raises(openai.NotFoundError):
        openai_client.videos.retrieve(video.id)
    assert not (system.media / video.id).exists()


def made_frames(system: System, video_id: str) -> np.ndarray[Any, np.dtype[np.uint8]]:
    assert final(system, video_id)["status"] == "completed"
    return frames_of_sheet(system.media / video_id / "1.sheet.jpg")


def test_same_seed_makes_the_same_frames_and_another_seed_others(system: System) -> None:
    ids = [create(system, seed=seed)["id"] for seed in (5, 5, 6)]
    first, same, other = (made_frames(system, each) for each in ids)
    assert np.array_equal(first, same)
    assert not np.array_equal(first, other)


def test_prompt_and_negative_prompt_reach_the_model(system: System) -> None:
    asked: list[dict[str, Any]] = [
        {"prompt": "a cat"},
        {"prompt": "a dog runs on the beach"},
        {"prompt": "a cat", "negative_prompt": "grass"},
    ]
    ids = [create(system, seed=5, **fields)["id"] for fields in asked]
    videos = [made_frames(system, each) for each in ids]
    assert not np.array_equal(videos[0], videos[1])
    assert not np.array_equal(videos[0], videos[2])


def test_jobs_end_in_the_order_of_their_arrival(system: System) -> None:
    ids = [create(system, gateway=i % 2)["id"] for i in range(4)]
    for each in ids:
        assert final(system, each)["status"] == "completed"
    listed = client(system).videos.list(limit=4, order="desc").data
    assert [each.id for each in listed] == ids[::-1]
    ended = [each.completed_at or 0 for each in listed][::-1]
    assert ended == sorted(ended)


def test_progress_is_true_and_both_gateways_tell_the_same(system: System) -> None:
    video_id = create(system, **LONG)["id"]
    seen: list[tuple[int, int]] = []
    while (video := get(system, video_id, gateway=len(seen) % 2))["status"] not in ("completed", "failed"):
        seen.append((video["step"], video["progress"]))
        time.sleep(0.01)
    assert video["status"] == "completed"
    steps = [step for step, _ in seen]
    assert steps == sorted(steps)
    assert len(set(steps)) > 8, "many steps were seen one by one"
    assert all(progress == min(99, 100 * step // 50) for step, progress in seen)
    assert get(system, video_id, 0) == get(system, video_id, 1)


def test_cancel_stops_before_the_next_step_and_the_engine_stays_usable(system: System) -> None:
    restarts = system.engine()["restarts"]
    video_id = create(system, **LONG)["id"]
    at = at_step(system, video_id, 3)["step"]
    assert httpx.post(f"{system.urls[1]}/v1/videos/{video_id}/cancel").status_code == 200
    video = final(system, video_id, 5)
    assert video["status"] == "cancelled"
    assert at <= video["step"] < 40
    probe = final(system, create(system)["id"])
    assert probe["status"] == "completed"
    assert system.engine()["restarts"] == restarts
    assert not (system.media / video_id).exists()


def test_deleting_a_running_job_stops_it_and_forgets_it(system: System) -> None:
    video_id = create(system, **LONG)["id"]
    at_step(system, video_id, 2)
    assert httpx.delete(f"{system.urls[0]}/v1/videos/{video_id}").json()["deleted"] is True
    assert httpx.get(f"{system.urls[1]}/v1/videos/{video_id}").status_code == 404
    assert final(system, create(system)["id"])["status"] == "completed"
    assert not (system.media / video_id).exists()


def test_two_requests_that_overlap_are_both_made_while_the_first_is_encoded(system: System) -> None:
    ids = [create(system, **LONG)["id"] for _ in range(2)]
    assert [final(system, each)["status"] for each in ids] == ["completed", "completed"]


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"size": "65x64"}, "size", "16"),
        ({"num_frames": 10}, "num_frames", "9 or 13"),
        ({"size": "256x256"}, "size", "128x128"),
        ({"num_frames": 53}, "num_frames", "49"),
        ({"num_inference_steps": 51}, "num_inference_steps", "50"),
        ({"prompt": " "}, "prompt", ""),
        ({"model": "sora-2"}, "model", "wan2.2-t2v-tiny"),
        ({"guidence_scale": 3}, "guidence_scale", "guidance_scale"),
    ],
)
def test_what_the_engine_cannot_do_is_refused_before_queueing(
    system: System, fields: dict[str, Any], param: str, words: str
) -> None:
    before = len(client(system).videos.list(limit=100).data)
    answer = httpx.post(f"{system.urls[0]}/v1/videos", json={"prompt": "a cat", **fields})
    assert answer.status_code in (400, 404)
    error = answer.json()["error"]
    assert error["param"] == param
    assert words in error["message"]
    assert len(client(system).videos.list(limit=100).data) == before


def test_health_tells_ready_and_the_probes_agree(system: System) -> None:
    for path in ("live", "ready", "startup"):
        assert httpx.get(f"{system.urls[0]}/health/{path}").status_code == 200
        probe = subprocess.run(
            [sys.executable, PROJECT / "healthchecks" / f"{path}.py", system.urls[0]],
            capture_output=True,
            text=True,
            check=False,
        )
        assert (probe.returncode, probe.stdout.count("\n")) == (0, 1)


def test_readiness_was_proved_by_a_real_job_on_both_experts(system: System) -> None:
    (engine,) = httpx.get(f"{system.urls[0]}/v1/engines").json()["data"]
    warm_up = engine["facts"]["warm_up"]
    assert all(warm_up["expert_steps"][expert] > 0 for expert in ("0", "1"))
    assert warm_up["decoded"]["frames"] == 49, "the largest admitted shape"
    assert warm_up["decoded"]["fault"] is None
    assert engine["facts"]["load"]["versions"]["vllm-omni"] == "0.30.0"


def test_metrics_of_both_programs_are_scraped(system: System) -> None:
    final(system, create(system)["id"])
    gateway = httpx.get(f"{system.urls[0]}/metrics").text
    assert re.search(r"^framekeeper_\w+", gateway, re.MULTILINE)
    supervisor = httpx.get(f"http://127.0.0.1:{system.supervisor_port}/metrics").text
    assert 'framekeeper_videos_finished_total{reason="",state="completed"}' in supervisor
    assert re.search(r"^framekeeper_denoising_step_seconds_count\{[^}]*\} [1-9]", supervisor, re.MULTILINE)


def test_no_prompt_is_in_any_log(system: System) -> None:
    final(system, create(system, prompt="a cat with the word Zanzibar")["id"])
    logs = [*system.directory.glob("*.log"), *(system.directory / "var" / "log").glob("*")]
    assert len(logs) >= 3
    assert not [path.name for path in logs if "Zanzibar" in path.read_text(errors="replace")]


def test_gateway_restart_loses_nothing(system: System) -> None:
    video_id = create(system, **LONG)["id"]
    at_step(system, video_id, 2)
    system.stop_gateways(signal.SIGKILL)
    system.urls = [system.start_gateway(), system.start_gateway()]
    video = final(system, video_id)
    assert (video["status"], video["attempt"]) == ("completed", 1)


def test_job_survives_worker_kill_and_the_engine_gets_ready_again(system: System) -> None:
    restarts = system.engine()["restarts"]
    video_id = create(system, **LONG)["id"]
    at_step(system, video_id, 3)
    os.kill(system.worker_pid(), signal.SIGKILL)
    wait_for(
        "not ready", lambda: httpx.get(f"{system.urls[0]}/health/ready").status_code == 503, 10, every=0.02
    )
    assert get(system, video_id)["status"] == "queued"
    video = final(system, video_id)
    assert (video["status"], video["attempt"]) == ("completed", 2)
    assert httpx.get(f"{system.urls[0]}/health/ready").status_code == 200
    assert system.engine()["restarts"] == restarts + 1


def test_job_survives_supervisor_kill(system: System) -> None:
    video_id = create(system, **LONG)["id"]
    at_step(system, video_id, 3)
    before = set(system.engine_processes())
    system.kill_supervisor()
    wait_for("no process of the old run is left", lambda: not before & set(system.engine_processes()), 5)
    system.start_supervisor()
    video = final(system, video_id)
    assert (video["status"], video["attempt"]) == ("completed", 2)


def test_facts_of_a_finished_job_add_up(system: System) -> None:
    video_id = final(system, create(system, **LONG)["id"])["id"]
    row = subprocess.run(
        ["psql", "-XAtc", f"SELECT facts FROM videos WHERE id = '{video_id}'", system.database_url],
        capture_output=True,
        text=True,
        check=False,
    )
    if row.returncode:
        pytest.skip("psql is not installed")
    facts = json.loads(row.stdout)
    assert sum(facts["expert_steps"].values()) == 50
    inside = sum(facts["seconds"][phase] for phase in ("text_encoding", "denoising", "decoding"))
    assert inside == pytest.approx(facts["seconds"]["total"], rel=0.1)
    assert facts["total_seconds"] - facts["seconds"]["total"] - facts["encode_seconds"] < 0.5
