"""What kill -9 costs: seconds until the engine is ready again, and until the interrupted job is delivered."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from system import System, wait_for
from videos import LARGE, Videos

#: The job is interrupted once it has made so many of its steps.
AT_STEP = 3


@dataclass(frozen=True)
class Recovery:
    """Seconds from the kill."""

    ready: float
    completed: float


def worker_killed(system: System, url: str) -> Recovery:
    """Kill the worker in the middle of a job."""
    restarts = system.engine()["restarts"]

    def kill() -> None:
        os.kill(system.worker_pid(), signal.SIGKILL)

    return _interrupted(system, url, kill, lambda: system.engine()["restarts"] > restarts)


def supervisor_killed(system: System, url: str) -> Recovery:
    """Kill the supervisor in the middle of a job, and start it again at once, as a platform does."""

    def kill() -> None:
        system.kill_supervisor()
        system.start_supervisor()

    return _interrupted(system, url, kill, lambda: True)


def _interrupted(
    system: System, url: str, kill: Callable[[], None], restarted: Callable[[], bool]
) -> Recovery:
    with Videos(url) as videos:
        video_id = videos.create(LARGE)
        wait_for("the job is under way", lambda: videos.get(video_id)["step"] >= AT_STEP, 60, every=0.01)
        began = time.monotonic()
        kill()

        def ready() -> bool:
            says = system.supervisor_says()["status"] == "ready"
            return says and restarted() and videos.status_code("/health/ready") == 200

        wait_for("ready again", ready, 180, every=0.02)
        ready_at = time.monotonic() - began
        video = videos.completed(video_id, 180)
        if video["attempt"] != 2:
            raise RuntimeError(f"the job was not interrupted: it ended in attempt {video['attempt']}")
        return Recovery(ready_at, time.monotonic() - began)
