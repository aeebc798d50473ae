"""A job's picture on its way from the media directory to the backend, with the real supervisor and worker."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from faulty import REQUEST, Start, final, running, with_database
from framekeeper.database.pool import Database
from framekeeper.jobs import engines, submit
from framekeeper.media.encode import read_video
from system import System

pytestmark = pytest.mark.slow

COLOUR = (200, 60, 40)


def store(system: System, name: str, colour: tuple[int, int, int] = COLOUR) -> str:
    """Put a picture where the gateway puts it; returns what the row says."""
    directory = system.media / "inputs"
    directory.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (100, 70), colour).save(directory / name)
    return f"inputs/{name}"


def submitted(system: System, input_file: str | None) -> str:
    async def work(database: Database) -> str:
        terms = submit.Terms(input_file=input_file)
        return (await submit.submit(database, "test-model", REQUEST, terms)).id

    return str(with_database(system, work))


def first_frame(system: System, video: Any) -> np.ndarray[Any, Any]:
    """Mean colour of the first frame."""
    frames = read_video(Path(system.media / video.id / video.video_file))
    colour: np.ndarray[Any, Any] = frames[0].mean(axis=(0, 1))
    return colour


def test_the_picture_reaches_the_backend_and_a_job_without_one_is_as_before(start: Start) -> None:
    system = start([], script={"image": "optional"})
    (engine,) = with_database(system, engines.all_engines)
    assert engine.admits["image"] == "optional"
    video = final(system, submitted(system, store(system, "a.png")))
    assert video.state == "completed"
    assert np.abs(first_frame(system, video) - COLOUR).max() < 6
    plain = final(system, submitted(system, None))
    assert plain.state == "completed"
    assert np.abs(first_frame(system, plain) - COLOUR).max() > 20


def test_the_attempt_after_a_killed_worker_has_the_picture_again(start: Start) -> None:
    system = start([], script={"step_seconds": 0.1})
    video_id = submitted(system, store(system, "a.png"))
    running(system, video_id)
    os.kill(system.worker_pid(), signal.SIGKILL)
    video = final(system, video_id)
    assert (video.state, video.attempt) == ("completed", 2)
    assert np.abs(first_frame(system, video) - COLOUR).max() < 6


def test_a_picture_that_is_gone_or_damaged_fails_the_job_and_not_the_engine(start: Start) -> None:
    system = start([])
    gone = final(system, submitted(system, "inputs/gone.png"))
    file = store(system, "cut.png")
    whole = (system.media / file).read_bytes()
    (system.media / file).write_bytes(whole[: len(whole) // 2])
    cut = final(system, submitted(system, file))
    for video in (gone, cut):
        assert (video.state, video.attempt, video.engine_deaths) == ("failed", 1, 0)
        assert "picture" in (video.error_message or "")
        assert str(system.media) not in (video.error_message or "")
    assert system.engine()["restarts"] == 0
    assert final(system, submitted(system, store(system, "good.png"))).state == "completed"
