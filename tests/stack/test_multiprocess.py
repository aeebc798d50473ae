"""The same with upstream's `mp` executor, whose processes are the worker's children."""

from __future__ import annotations

import os
import signal

import httpx
from test_main_job import LONG, at_step, create, final

from shared_memory import left, segments
from system import System, wait_for

PROFILE = "cpu-tiny-mp"


def test_steps_come_one_by_one_from_the_executors_process(system: System) -> None:
    video_id = create(system, **LONG)["id"]
    assert 0 < at_step(system, video_id, 3)["step"] < 40
    assert len(system.engine_processes()) >= 3, "warden, worker, executor"
    assert final(system, video_id)["status"] == "completed"


def test_cancel_reaches_the_executors_process(system: System) -> None:
    video_id = create(system, **LONG)["id"]
    at_step(system, video_id, 3)
    httpx.post(f"{system.urls[0]}/v1/videos/{video_id}/cancel")
    assert final(system, video_id, 10)["step"] < 40
    assert final(system, create(system)["id"])["status"] == "completed"


def test_job_survives_the_kill_of_the_executors_process(system: System) -> None:
    video_id = create(system, **LONG)["id"]
    at_step(system, video_id, 3)
    (executor,) = [pid for pid, line in system.engine_processes().items() if "DiffusionWorker" in line]
    os.kill(executor, signal.SIGKILL)
    assert final(system, video_id)["status"] == "completed"


def test_supervisor_kill_leaves_no_grandchild_and_no_shared_memory(system: System) -> None:
    video_id = create(system, **LONG)["id"]
    at_step(system, video_id, 3)
    ours = segments(system.engine_processes())
    assert ours
    system.kill_supervisor()
    wait_for("no process is left", lambda: not system.engine_processes(), 5)
    wait_for("no shared memory is left", lambda: not left(ours), 5)
    system.start_supervisor()
    assert final(system, video_id)["status"] == "completed"
