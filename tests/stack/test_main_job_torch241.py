"""The whole system on torch 2.4.1, on a CPU: vllm-omni 0.14 in the worker, and diffusers below it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest
from test_main_job import LONG, at_step, client, create, final, frames_of, get

from cluster import Cluster, new_database
from engine_runtime import torch241_python
from framekeeper.media.encode import read_video
from framekeeper.media.inspect import inspect
from system import System, wait_for

PROFILE = "cpu-tiny-torch241"
ENGINE = torch241_python

pytestmark = [
    pytest.mark.runtimes,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:The Sora API:DeprecationWarning"),
]

NEEDLESS = """
import sys
from safetensors.torch import load_file, save_file
import torch
for path in sys.argv[1:]:
    weights = load_file(path)
    weights["blocks.0.needless"] = torch.zeros(2)
    save_file(weights, path, metadata={"format": "pt"})
"""
"""Adds a tensor to each file that no part of a transformer is named for: vllm-omni fails, diffusers warns."""


def test_official_client_gets_a_decodable_video(system: System, tmp_path: Path) -> None:
    openai_client: openai.OpenAI = client(system)
    video = openai_client.videos.create_and_poll(
        prompt="two robots box under a spotlight", size="96x64", seconds="2", poll_interval_ms=50
    )
    assert (video.status, video.progress, video.error) == ("completed", 100, None)
    openai_client.videos.download_content(video.id).write_to_file(tmp_path / "out.mp4")
    frames = read_video(tmp_path / "out.mp4")
    assert frames.shape == (17, 64, 96, 3)
    assert inspect(frames).fault is None


def test_readiness_was_proved_by_a_real_job_on_both_experts(system: System) -> None:
    (engine,) = httpx.get(f"{system.urls[0]}/v1/engines").json()["data"]
    assert engine["state"] == "ready"
    warm_up = engine["facts"]["warm_up"]
    assert all(warm_up["expert_steps"][expert] > 0 for expert in ("0", "1"))
    assert warm_up["decoded"]["frames"] == 49, "the largest admitted shape"
    assert warm_up["decoded"]["fault"] is None
    versions = engine["facts"]["load"]["versions"]
    assert versions["torch"].startswith("2.4.1")
    assert versions["vllm-omni"] == "0.14.0"


def test_the_engine_is_one_process(system: System) -> None:
    commands = list(system.engine_processes().values())
    assert len(commands) == 2, commands
    assert sorted("warden.py" in command for command in commands) == [False, True]


def test_cancel_stops_before_the_next_step_and_the_engine_stays_usable(system: System) -> None:
    restarts = system.engine()["restarts"]
    video_id = create(system, **LONG)["id"]
    at = at_step(system, video_id, 3)["step"]
    assert httpx.post(f"{system.urls[1]}/v1/videos/{video_id}/cancel").status_code == 200
    video = final(system, video_id, 30)
    assert video["status"] == "cancelled"
    assert at <= video["step"] < 40
    assert final(system, create(system)["id"])["status"] == "completed"
    assert system.engine()["restarts"] == restarts


def test_job_survives_worker_kill_and_the_engine_gets_ready_again(system: System, tmp_path: Path) -> None:
    restarts = system.engine()["restarts"]
    video_id = create(system, **LONG)["id"]
    at_step(system, video_id, 3)
    os.kill(system.worker_pid(), signal.SIGKILL)
    wait_for(
        "not ready", lambda: httpx.get(f"{system.urls[0]}/health/ready").status_code == 503, 10, every=0.02
    )
    assert get(system, video_id)["status"] == "queued"
    video = final(system, video_id, 200)
    assert (video["status"], video["attempt"]) == ("completed", 2)
    assert inspect(frames_of(system, video_id, tmp_path)).fault is None
    assert system.engine()["restarts"] == restarts + 1


@pytest.fixture
def fresh_database(postgres_cluster: Cluster, postgres_template: str) -> Iterator[str]:
    yield from new_database(postgres_cluster, postgres_template)


@pytest.mark.timeout(400)
def test_where_vllm_omni_does_not_come_up_diffusers_takes_over_and_says_so(
    fresh_database: str, tiny_model: Path, tmp_path: Path
) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny_model, model)
    # In both experts: the doctor refuses two that differ before any engine starts.
    weights = sorted(model.glob("transformer*/*.safetensors"))
    assert len(weights) == 2
    subprocess.run([torch241_python(), "-c", NEEDLESS, *weights], check=True)
    system = System(
        tmp_path / "system",
        fresh_database,
        profile=PROFILE,
        model=model,
        engine_python=torch241_python(),
    )
    try:
        system.start_supervisor()
        system.urls = [system.start_gateway()]
        wait_for("it serves on its rung", lambda: system.engine()["state"] == "degraded", 350)
        video_id = create(system)["id"]
        assert final(system, video_id)["status"] == "completed"
        assert inspect(frames_of(system, video_id, tmp_path)).fault is None
        (engine,) = httpx.get(f"{system.urls[0]}/v1/engines").json()["data"]
        assert "diffusers" in json.dumps(engine)
        assert "vllm-omni" not in engine["facts"]["load"]["versions"], "it is diffusers that runs"
        system.close()
    finally:
        system.abandon()
