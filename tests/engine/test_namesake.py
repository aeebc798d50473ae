"""Two supervisors of one name: the second one does not start beside the first, and at once after it."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from faulty import Start, final, running, submitted, with_database
from framekeeper.jobs import engines
from framekeeper.jobs.video import VideoState
from system import System, fault_profile

pytestmark = pytest.mark.slow


def namesake(first: System, directory: Path, **settings: Any) -> System:
    """A system with the first one's host id and database, and a VAR of its own; not started."""
    profile = fault_profile(directory / "profiles", [])
    own = {"profile": profile, "engine_python": sys.executable} | settings
    return System(directory / "second", first.database_url, **own)


def ended(system: System) -> int:
    assert system.supervisor is not None
    return system.supervisor.wait(30)


def run_id(system: System) -> str:
    (engine,) = with_database(system, engines.all_engines)
    return str(engine.run_id)


def test_second_supervisor_is_refused_with_a_sentence_and_the_first_one_never_notices(
    start: Start, tmp_path: Path
) -> None:
    first = start([], script={"step_seconds": 0.3})
    video_id = submitted(first, num_inference_steps=20)
    running(first, video_id, 1)
    second = namesake(first, tmp_path)
    try:
        second.start_supervisor()
        assert ended(second) == 2
        told = second.log().splitlines()[-1]
        assert told.startswith("FRAMEKEEPER_HOST_ID=test-host: another supervisor with this name runs"), told
        assert told.endswith("or set FRAMEKEEPER_HOST_ID to another name here")
    finally:
        second.abandon()
    video = final(first, video_id)
    assert (video.state, video.attempt) == (VideoState.COMPLETED, 1)
    assert first.engine()["restarts"] == 0


def test_refused_configuration_does_not_take_a_living_supervisors_engines(
    start: Start, tmp_path: Path
) -> None:
    first = start([])
    before = run_id(first)
    second = namesake(first, tmp_path, engine_python=tmp_path / "none" / "bin" / "python")
    try:
        second.start_supervisor()
        assert ended(second) == 2
        assert "FRAMEKEEPER_ENGINE_PYTHON" in second.log()
    finally:
        second.abandon()
    assert run_id(first) == before
    assert final(first, submitted(first)).state is VideoState.COMPLETED


@pytest.mark.parametrize("place", ["the same VAR", "another VAR"])
def test_successor_of_a_killed_supervisor_starts_at_once(start: Start, tmp_path: Path, place: str) -> None:
    # Were its heart watched, that alone would take 30 s.
    first = start([], stale_seconds=60)
    first.kill_supervisor()
    second = namesake(first, tmp_path, stale_seconds=60) if place == "another VAR" else first
    begun = time.monotonic()
    try:
        second.start_supervisor()
        second.wait_ready(30)
        assert time.monotonic() - begun < 20
        assert "may have this host's name" not in second.log()
        if second is not first:
            second.close()
    finally:
        if second is not first:
            second.abandon()


def test_supervisor_without_a_heartbeat_is_followed_though_its_connections_stand(
    start: Start, tmp_path: Path
) -> None:
    # As of a host that lost its power, as far as the database's server knows.
    first = start([])
    second = namesake(first, tmp_path)
    assert first.supervisor is not None
    first.supervisor.send_signal(signal.SIGSTOP)
    try:
        second.start_supervisor()
        second.wait_ready(40)
        first.supervisor.send_signal(signal.SIGCONT)
        assert first.supervisor.wait(30) == 0
        assert "another supervisor has taken this host's name" in first.log()
        assert final(second, submitted(second)).state is VideoState.COMPLETED
        second.close()
    finally:
        first.supervisor.send_signal(signal.SIGCONT)
        second.abandon()
