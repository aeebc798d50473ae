"""One run of the product on a card: its systems, what a client sees of a job, what the card holds."""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import av
import numpy as np
import psycopg
from psycopg.rows import dict_row

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent.parent / "tests")]

import profiles as bench_profiles  # noqa: E402
from framekeeper.media.inspect import inspect  # noqa: E402
from system import System, wait_for  # noqa: E402
from videos import Videos  # noqa: E402

#: Memory above what was used before any engine that still counts as given back.
SLACK_MIB = 64
PROMPT = "a cat walks on the grass, realistic"


def used_mib() -> int:
    """Memory in use on the card, by the driver; 0 without one."""
    try:
        command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[0])
    except (OSError, ValueError, IndexError, subprocess.SubprocessError):
        return 0


class Bench:
    """One run: where results go, what the machine is like."""

    def __init__(self, arguments: argparse.Namespace, directory: Path) -> None:
        self.out: Path = arguments.out
        self.directory = directory
        self.request: dict[str, Any] = {"size": arguments.size, "num_frames": arguments.frames}
        self.profiles = bench_profiles.write(directory / "profiles", arguments.model, arguments.base)
        self.base: str = arguments.base
        self.steps: tuple[int, int] = tuple(arguments.steps)
        self.engine_python: Path = arguments.engine_python
        self.idle = used_mib()
        self.url = ""

    def record(self, what: str, **facts: Any) -> None:
        """Write one result, and show it."""
        line = {"what": what, "at": datetime.now(UTC).isoformat(timespec="seconds"), **facts}
        with self.out.open("a") as file:
            file.write(json.dumps(line, default=str) + "\n")
        print(json.dumps(line, default=str)[:1500], flush=True)

    @contextlib.contextmanager
    def system(self, profile: str, **settings: Any) -> Iterator[System]:
        """A supervisor with this profile; it is ended, and its memory must come back."""
        system = System(
            self.directory / profile,
            self.url,
            profile=profile,
            profiles=self.profiles,
            engine_python=self.engine_python,
            stale_seconds=20,
            drain_seconds=1,
            host_id=f"gpu-{profile}",
            **settings,
        )
        try:
            yield system
        except BaseException:
            print(system.log(), flush=True)
            engine_log = system.directory / "var" / "log" / "engine-0.log"
            if engine_log.exists():
                print(engine_log.read_text()[-5000:], flush=True)
            system.abandon()
            raise
        stopped = time.monotonic()
        system.close()
        self.record("stopped", profile=profile, seconds=since(stopped), **self.memory_back())

    def memory_back(self, held: int = 0) -> dict[str, Any]:
        """Wait until the driver has the memory again; how long that took and what is left, in MiB."""
        began = time.monotonic()
        while used_mib() > self.idle + held + SLACK_MIB and time.monotonic() - began < 60:
            time.sleep(0.05)
        return {"memory_back_seconds": since(began), "memory_left_mib": used_mib() - self.idle - held}

    def ready(self, system: System, began: float, seconds: float = 400) -> dict[str, Any]:
        """Wait for readiness; the engine's states and phases with their seconds, from `began`."""
        seen: list[list[Any]] = []

        def poll() -> bool:
            assert system.supervisor is not None
            assert system.supervisor.poll() is None, "the supervisor has ended"
            engine = system.engine()
            now = [engine["state"], engine.get("phase"), engine.get("detail")]
            if not seen or seen[-1][1:] != now:
                seen.append([since(began), *now])
            assert engine["state"] != "failed", engine
            return system.supervisor_says()["status"] == "ready"

        wait_for("ready", poll, seconds, 0.1)
        return {"ready_seconds": since(began), "states": seen}

    def reach(self, system: System, state: str, seconds: float) -> None:
        """Wait for a state of the engine; a supervisor that has ended is not waited for."""

        def poll() -> bool:
            assert system.supervisor is not None
            assert system.supervisor.poll() is None, "the supervisor has ended"
            now = system.engine()["state"]
            assert now in (state, "starting", "loading", "unreachable"), f"{now}, and not {state}"
            return bool(now == state)

        wait_for(state, poll, seconds, 0.02)

    def row(self, video: str) -> dict[str, Any]:
        """A video's row."""
        with psycopg.connect(self.url, row_factory=dict_row) as connection:
            found = connection.execute("SELECT * FROM videos WHERE id = %s", (video,)).fetchone()
        assert found is not None
        return found

    def facts(self) -> Any:
        """What the engines told when they loaded and warmed up."""
        with psycopg.connect(self.url, row_factory=dict_row) as connection:
            found = connection.execute("SELECT facts FROM engines ORDER BY started_at DESC").fetchone()
        assert found is not None
        return found["facts"]

    def incidents(self, videos: Videos) -> list[dict[str, Any]]:
        """Incidents so far, without their logs."""
        listed = videos._client.get("/v1/incidents").raise_for_status().json()["data"]
        return [{key: value for key, value in each.items() if key != "excerpt"} for each in listed]

    def fields(self, **more: Any) -> dict[str, Any]:
        """A request."""
        return {"prompt": PROMPT, "seed": 7, "num_inference_steps": 6, **self.request, **more}


def since(began: float) -> float:
    """Seconds from `began`, a monotonic time."""
    return round(time.monotonic() - began, 2)


def until(videos: Videos, video: str, true: Callable[[dict[str, Any]], bool], seconds: float = 300) -> Any:
    """Poll a job until `true`."""
    return wait_for("the job", lambda: (job := videos.get(video)) and true(job) and job, seconds, 0.02)


def follow(videos: Videos, video: str, seconds: float = 400) -> list[list[Any]]:
    """Every change of step or phase that a client sees, with seconds from now on."""
    began = time.monotonic()
    seen: list[list[Any]] = []

    def poll() -> bool:
        job = videos.get(video)
        now = [job["status"], job["phase"], job["step"], job["attempt"]]
        if not seen or seen[-1][1:] != now:
            seen.append([since(began), *now])
        return job["status"] not in ("queued", "in_progress")

    wait_for("the video", poll, seconds, 0.02)
    return seen


def look(mp4: bytes) -> dict[str, Any]:
    """Decode a file and look at its frames."""
    with tempfile.NamedTemporaryFile(suffix=".mp4") as file:
        file.write(mp4)
        file.flush()
        with av.open(file.name) as container:
            stream = container.streams.video[0]
            frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(stream)]
            codec = stream.codec_context
            shape = {"codec": codec.name, "pix_fmt": codec.pix_fmt, "width": codec.width}
            shape |= {"height": codec.height, "fps": str(stream.average_rate)}
    found = inspect(np.stack(frames))
    return {"bytes": len(mp4), **shape, **found.facts(), "fault": found.fault}


def worker_pid(system: System) -> int:
    """The worker's process."""
    for pid, command in system.engine_processes().items():
        # vllm-omni gives the process a title of its own.
        if "DiffusionWorker" in command or ("engine.worker" in command and "warden" not in command):
            return pid
    raise RuntimeError(f"no worker among {system.engine_processes()}")


def make_one(bench: Bench, videos: Videos, what: str, **fields: Any) -> None:
    """One video from POST to decoded file."""
    began = time.monotonic()
    video = videos.create(bench.fields(**fields))
    changes = follow(videos, video)
    mp4 = videos.content(video)
    seconds = since(began)
    row = bench.row(video)
    bench.record(what, request=fields, seconds=seconds, changes=changes, facts=row["facts"], file=look(mp4))


@contextlib.contextmanager
def filled(gigabytes: float) -> Iterator[str]:
    """Another process holds the card but for so much; gives what it says."""
    filler = subprocess.Popen(
        [sys.executable, str(HERE / "filler.py"), str(gigabytes)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert filler.stdout is not None
        words = filler.stdout.readline().strip()
        if not words:
            raise RuntimeError("the filler has ended: the card is not full")
        yield words
    finally:
        filler.kill()
        filler.wait()
