"""What the supervisor does about a cause: rungs, limits, stops, and the operator's way back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from faulty import OUT_OF_MEMORY, Start, final, found, incident_rows, running, submitted
from system import PROJECT, System, fault_profile, wait_for

pytestmark = pytest.mark.slow

COMPILED = "compile: regional\nfallbacks: [{name: eager, change: {compile: off}}]"
INDUCTOR = "torch._inductor.exc.InductorError: KeyError: 'op19'"


def command(system: System, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "framekeeper", *words],
        env=system.environment(),
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_a_compile_failure_goes_to_the_rung_without_compile_and_the_job_completes(start: Start) -> None:
    fault = {"at": "step", "step": 2, "what": "raise", "text": INDUCTOR}
    system = start([fault], script={"profile": COMPILED})
    video = final(system, submitted(system))
    assert (video.state, video.attempt) == ("completed", 2)
    wait_for("degraded", lambda: system.engine()["state"] == "degraded", 10)
    assert "eager" in system.engine()["detail"]
    (incident,) = incident_rows(system)
    assert incident.record["action"] == "next_rung"
    assert (incident.rung, incident.record["next_rung"]) == (0, 1)
    assert incident.video_id == video.id
    assert incident.ready_again_seconds is not None


def test_a_rung_outlives_the_supervisor_until_an_operator_resets_it(start: Start) -> None:
    fault = {"at": "step", "step": 2, "what": "raise", "text": INDUCTOR}
    system = start([fault], script={"profile": COMPILED})
    final(system, submitted(system))
    wait_for("degraded", lambda: system.engine()["state"] == "degraded", 10)
    assert system.stop_supervisor() == 0
    system.start_supervisor()
    system.wait_ready(30)
    assert system.engine()["state"] == "degraded"
    assert "goes back to its profile" in command(system, "engines", "reset", "test-host/0")
    wait_for("back on the profile", lambda: system.engine()["state"] == "ready", 20)
    assert "nothing to do" in command(system, "engines", "reset", "test-host/0")


def test_a_quiet_time_leads_up_again(start: Start) -> None:
    fault = {"at": "step", "step": 2, "what": "raise", "text": INDUCTOR}
    system = start([fault], script={"profile": COMPILED}, rung_quiet_seconds=8)
    final(system, submitted(system))
    assert [row.record["action"] for row in incident_rows(system)] == ["next_rung"]
    wait_for("the way up", lambda: "quiet for long enough, so rung 0 is tried again" in system.log(), 30)
    wait_for("back on the profile", lambda: system.engine()["state"] == "ready", 30)
    assert final(system, submitted(system)).state == "completed"


def test_a_shape_that_did_not_fit_is_refused_with_the_reason_and_smaller_ones_go_on(start: Start) -> None:
    fault = {"at": "step", "step": 2, "what": "raise", "text": OUT_OF_MEMORY, "job": "video"}
    system = start([fault])
    url = system.start_gateway()
    large = {"prompt": "a cat", "size": "128x128", "num_frames": 49}
    video = final(system, httpx.post(f"{url}/v1/videos", json=large).json()["id"])
    assert video.state == "failed"
    assert "memory" in (video.error_message or "")
    wait_for("degraded", lambda: system.engine()["state"] == "degraded", 20)
    refusal = httpx.post(f"{url}/v1/videos", json=large)
    assert refusal.status_code == 400
    message = refusal.json()["error"]["message"]
    assert "128x128, 49 frames did not fit into the card's memory" in message
    assert "tried again at" in message
    smaller = httpx.post(f"{url}/v1/videos", json={"prompt": "a cat", "size": "128x128", "num_frames": 33})
    assert final(system, smaller.json()["id"]).state == "completed"


def test_a_cause_that_no_restart_helps_stops_the_engine_until_it_is_reset(start: Start) -> None:
    text = "safetensors_rust.SafetensorError: Error while deserializing header: HeaderTooLarge"
    system = start([{"at": "load", "what": "raise", "text": text}], wait=False)
    wait_for("failed", lambda: system.engine()["state"] == "failed", 30)
    assert "Starting again does not help" in system.engine()["detail"]
    assert system.supervisor_says("/health/live")["http"] == 503
    video_id = submitted(system)
    command(system, "engines", "reset", "test-host/0")
    assert final(system, video_id).state == "completed"
    assert "engine recycled" not in system.log(), "the first start is the right one"


def test_an_engine_that_never_starts_is_failed_and_not_live_until_a_reset_gives_it_a_clean_slate(
    start: Start,
) -> None:
    system = start([{"at": "load", "what": "exit", "times": 6}], wait=False)
    # Pauses of 0, 1, 5 and 15 seconds lie between the five starts that make a crash loop.
    wait_for("failed", lambda: system.engine()["state"] == "failed", 60)
    assert system.supervisor_says("/health/live")["http"] == 503
    assert "exited with code 1" in system.engine()["detail"]
    command(system, "engines", "reset", "test-host/0")
    system.wait_ready(30)
    assert system.supervisor_says("/health/live")["http"] == 200
    assert len(incident_rows(system)) == 6, "the sixth end was the first of a new count"


def test_caches_are_emptied_when_they_are_the_cause(start: Start) -> None:
    text = "ImportError: /caches/triton/ab/cuda_utils.so: file too short"
    system = start([{"at": "idle", "seconds": 3, "what": "die", "signal": 6, "text": text}])
    (cache,) = (system.directory / "var" / "cache").rglob("group-0")
    (cache / "triton").mkdir()
    (cache / "triton" / "broken").touch()
    wait_for("the next start", lambda: system.engine()["restarts"] == 1, 20)
    system.wait_ready(30)
    assert [row.record["action"] for row in incident_rows(system)] == ["clear_caches"]
    assert cache.is_dir()
    assert not (cache / "triton" / "broken").exists()


def test_steady_growth_ends_in_a_planned_restart_between_jobs(start: Start) -> None:
    grow = {"at": "decode", "what": "grow", "bytes": 120_000_000, "times": None}
    system = start([grow])
    videos = [final(system, submitted(system)) for _ in range(8)]
    assert {(video.state, video.attempt) for video in videos} == {("completed", 1)}
    wait_for("recycled", lambda: system.engine()["restarts"] == 1, 20)
    assert "host memory grew after each of the last 6 jobs" in system.log()
    assert incident_rows(system) == [], "it was planned"


def test_kills_from_outside_do_not_quarantine_a_job(start: Start) -> None:
    system = start([], script={"step_seconds": 0.15}, max_attempts=4)
    video_id = submitted(system)
    for attempt in (1, 2):
        wait_for("it runs", lambda a=attempt: found(system, video_id).attempt == a, 20)  # type: ignore[misc]
        running(system, video_id)
        os.kill(system.worker_pid(), signal.SIGKILL)
        wait_for(
            "it was settled",
            lambda a=attempt: (
                found(system, video_id).attempt != a or found(system, video_id).state == "queued"
            ),
            20,
        )  # type: ignore[misc]
    video = final(system, video_id)
    assert (video.state, video.attempt, video.engine_deaths) == ("completed", 3, 0)


def test_incidents_are_told_over_http_and_on_the_command_line(start: Start) -> None:
    system = start([{"at": "step", "step": 3, "what": "die", "signal": 11}])
    url = system.start_gateway()
    video = final(system, submitted(system))
    wait_for("ready again", lambda: incident_rows(system)[0].ready_again_seconds, 10)
    body: dict[str, Any] = httpx.get(f"{url}/v1/incidents").json()
    (incident,) = body["data"]
    assert incident["video"] == video.id
    assert incident["signature"] == "worker_segv"
    assert incident["exit"] == "signal 11"
    assert incident["decision"] == "restart_same"
    assert 0 < incident["ready_again_seconds"] < 60
    assert (body["has_more"], body["last_id"]) == (False, incident["id"])
    printed = command(system, "incidents", "--details")
    assert incident["id"] in printed
    assert "segmentation fault" in printed
    assert "test-host/0" in command(system, "engines", "list")
    metrics = httpx.get(f"http://127.0.0.1:{system.supervisor_port}/metrics").text
    assert 'framekeeper_incidents_total{signature="worker_segv"} 1.0' in metrics


def test_a_transformer_that_did_not_compile_makes_the_engine_degraded(start: Start) -> None:
    script = {"profile": COMPILED, "facts": {"compiled_modules": [40, 0]}}
    system = start([], script=script)
    engine = system.engine()
    assert engine["state"] == "degraded"
    assert engine["detail"] == "compile: regional, but transformer 2 of 2 is not compiled"
    assert final(system, submitted(system)).state == "completed"


def test_a_supervisor_refuses_a_newer_schema_in_one_line(postgres_url: str, tmp_path: Path) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    system = System(
        tmp_path,
        postgres_url,
        profile=fault_profile(tmp_path / "profiles", []),
        engine_python=sys.executable,
    )
    system.start_supervisor()
    assert system.supervisor is not None
    assert system.supervisor.wait(30) == 2
    assert "Traceback" not in system.log()
    assert "another version of Framekeeper" in system.log()
