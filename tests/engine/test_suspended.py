"""A supervisor that was stopped for a while, alone or with its engines, takes its own pause for nobody's."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from faulty import Start, final, incident_rows, running, submitted
from framekeeper.engine.patience import PIECE_SECONDS, Patience
from framekeeper.jobs.video import VideoState
from system import System, fault_profile, wait_for

pytestmark = pytest.mark.slow

#: Longer than the deadlines of the profile (3 s) and than the heartbeat may be old (6 s).
PAUSE_SECONDS = 7.0


@contextlib.contextmanager
def stopped(pids: list[int]) -> Iterator[None]:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def all_of(system: System) -> list[int]:
    assert system.supervisor is not None
    return [system.supervisor.pid, *system.engine_processes()]


def undisturbed(system: System, video_id: str) -> None:
    video = final(system, video_id)
    assert (video.state, video.attempt) == (VideoState.COMPLETED, 1), (video.error_message, system.log())
    assert incident_rows(system) == []
    assert system.engine()["restarts"] == 0


def test_a_stopped_supervisor_reads_what_its_engine_said_meanwhile(start: Start) -> None:
    # The longest silence that the reader has to forgive is the pause: the engine goes on working in it.
    system = start([], script={"step_seconds": 0.2})
    video_id = submitted(system, num_inference_steps=45)
    running(system, video_id, 2)
    assert system.supervisor is not None
    with stopped([system.supervisor.pid]):
        time.sleep(PAUSE_SECONDS)
    undisturbed(system, video_id)


def test_a_stopped_machine_gives_its_engine_the_time_back(start: Start) -> None:
    system = start([], script={"step_seconds": 0.5, "deadlines": {"job": 9}})
    video_id = submitted(system, num_inference_steps=10)
    running(system, video_id, 2)
    with stopped(all_of(system)):
        time.sleep(PAUSE_SECONDS)
    undisturbed(system, video_id)


def test_a_machine_that_is_stopped_while_its_engine_loads_starts_it_once(start: Start) -> None:
    system = start([], wait=False, script={"load_seconds": 2.5, "deadlines": {"load": 6}})
    wait_for("the engine loads", lambda: system.engine()["state"] == "loading", 20, every=0.02)
    with stopped(all_of(system)):
        time.sleep(PAUSE_SECONDS)
    system.wait_ready(30)
    assert system.engine()["restarts"] == 0
    assert incident_rows(system) == []


def test_an_engine_that_hangs_is_found_after_a_pause_too(start: Start) -> None:
    system = start([{"at": "step", "step": 4, "what": "hang"}], script={"step_seconds": 0.2})
    video_id = submitted(system, num_inference_steps=10)
    running(system, video_id, 3)
    with stopped(all_of(system)):
        time.sleep(PAUSE_SECONDS)
    video = final(system, video_id)
    assert (video.state, video.attempt) == (VideoState.COMPLETED, 2)
    (incident,) = incident_rows(system)
    assert "no sign of progress" in incident.record["exit_reason"]


def test_a_supervisor_that_wakes_first_does_not_take_the_jobs_of_one_that_slept_beside_it(
    tmp_path: Path, start: Start
) -> None:
    first = start([])
    second = System(
        tmp_path / "second",
        first.database_url,
        profile=fault_profile(tmp_path / "profiles", [], step_seconds=0.5),
        engine_python=sys.executable,
        host_id="second-host",
    )
    try:
        second.start_supervisor()
        second.wait_ready(30)
        assert first.supervisor is not None
        first.supervisor.send_signal(signal.SIGSTOP)  # so that the second one has the job
        video_id = submitted(second, num_inference_steps=12)
        running(second, video_id, 2)
        with stopped(all_of(second)):
            # More than twice the time between two of its looks, and than a heartbeat may be old.
            time.sleep(12)
            first.supervisor.send_signal(signal.SIGCONT)
            time.sleep(2)
        undisturbed(second, video_id)
        second.close()
    finally:
        first.supervisor.send_signal(signal.SIGCONT)
        second.abandon()


async def silence(patience: Patience, seconds: float, *, blocked: float) -> float:
    """Seconds that an empty box is waited for, this process being held up so long in it."""
    loop, begun = asyncio.get_running_loop(), time.monotonic()
    loop.call_later(0.05, time.sleep, blocked)
    with pytest.raises(TimeoutError):
        await patience.message(asyncio.Queue(), seconds)
    return time.monotonic() - begun


def test_only_time_in_which_we_ran_counts_as_silence() -> None:
    patience = Patience()
    assert 0.4 <= asyncio.run(silence(patience, 0.4, blocked=0)) < 0.7
    assert patience.paused_seconds == 0
    assert 2 + PIECE_SECONDS <= asyncio.run(silence(patience, 0.4, blocked=2)) < 2.6 + PIECE_SECONDS
    assert 1.4 < patience.paused_seconds < 2.1
