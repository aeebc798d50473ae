"""Run Framekeeper on a card and write down what it did: `run.py --model DIRECTORY --out FILE SECTION…`.

Everything is the product: embedded PostgreSQL, gateway, supervisor, worker. Sections, in the order given:

* `service`: start to ready; a video of 832x480x81 with a report a step; cancel between steps; worker killed
  with SIGKILL in the middle of a job: memory back, ready again, the job made all the same.
* `kill`: the last of these alone.
* `async`, `sync`: layerwise offload with either prefetch: ready, one video, seconds a step, peak memory.
* `oom`, `oom-expandable`: another process fills the card while the engine warms up, and before decoding.
* `h200`, `h200-fast`: as shipped, at 1280x720x81: ready, two videos queued together and the gap between them;
  after the fast one the worker is killed, with a warm compile cache.
* `card`: an illegal access, a kernel that never ends and a full card, by the fault backend.

Each result is one line of JSON in FILE. Run it with the environment that unpack.py made.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import av
import numpy as np
import psutil
import psycopg
from psycopg.rows import dict_row

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent.parent / "tests")]

import profiles as bench_profiles  # noqa: E402
from framekeeper.database.embedded import embedded_postgres  # noqa: E402
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
        self.record("stopped", profile=profile, seconds=_since(stopped), **self.memory_back())

    def memory_back(self, held: int = 0) -> dict[str, Any]:
        """Wait until the driver has the memory again; how long that took and what is left, in MiB."""
        began = time.monotonic()
        while used_mib() > self.idle + held + SLACK_MIB and time.monotonic() - began < 60:
            time.sleep(0.05)
        return {"memory_back_seconds": _since(began), "memory_left_mib": used_mib() - self.idle - held}

    def ready(self, system: System, began: float, seconds: float = 400) -> dict[str, Any]:
        """Wait for readiness; the engine's states and phases with their seconds, from `began`."""
        seen: list[list[Any]] = []

        def poll() -> bool:
            assert system.supervisor is not None
            assert system.supervisor.poll() is None, "the supervisor has ended"
            engine = system.engine()
            now = [engine["state"], engine.get("phase"), engine.get("detail")]
            if not seen or seen[-1][1:] != now:
                seen.append([_since(began), *now])
            assert engine["state"] != "failed", engine
            return system.supervisor_says()["status"] == "ready"

        wait_for("ready", poll, seconds, 0.1)
        return {"ready_seconds": _since(began), "states": seen}

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


def _since(began: float) -> float:
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
            seen.append([_since(began), *now])
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
    seconds = _since(began)
    row = bench.row(video)
    bench.record(what, request=fields, seconds=seconds, changes=changes, facts=row["facts"], file=look(mp4))


def service(bench: Bench) -> None:
    """The whole life of an engine."""
    with bench.system("bench-compiled") as system:
        began = time.monotonic()
        system.start_supervisor()
        url = system.start_gateway()
        ready = bench.ready(system, began)
        bench.record("ready", profile="bench-compiled", cache="cold", **ready, facts=bench.facts())
        with Videos(url) as videos:
            make_one(bench, videos, "video")
            _cancel(bench, videos)
            _kill(bench, videos, system)
            bench.record("incidents", incidents=bench.incidents(videos))


def _cancel(bench: Bench, videos: Videos) -> None:
    video = videos.create(bench.fields(num_inference_steps=20))
    after = videos.create(bench.fields(num_inference_steps=2))
    until(videos, video, lambda job: job["step"] >= 2)
    began = time.monotonic()
    videos._client.post(f"/v1/videos/{video}/cancel").raise_for_status()
    cancelled = until(videos, video, lambda job: job["status"] == "cancelled")
    seconds = _since(began)
    following = until(videos, after, lambda job: job["status"] == "in_progress" and bool(job["phase"]))
    gap = _since(began) - seconds
    following = videos.completed(after, 300)
    bench.record(
        "cancel",
        step=cancelled["step"],
        cancelled_seconds=seconds,
        next_job_began_seconds_later=round(gap, 2),
        next_job=following["status"],
        next_job_seconds=bench.row(after)["facts"]["seconds"],
    )


def _kill(bench: Bench, videos: Videos, system: System, *, finish: bool = True, **fields: Any) -> None:
    """Kill the worker in a job; with `finish` the job is waited for, which runs again."""
    video = videos.create(bench.fields(**fields))
    until(videos, video, lambda job: job["step"] >= 1)
    before = used_mib()
    pid = worker_pid(system)
    began = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    back = bench.memory_back()
    wait_for("the end is noticed", lambda: system.engine()["state"] not in ("busy", "ready"), 60, 0.02)
    ready = bench.ready(system, began)
    what = {"used_mib_before": before - bench.idle, **back, **ready, "facts": bench.facts()}
    if finish:
        what["changes"] = follow(videos, video)
        what["file"] = look(videos.content(video))
    done = bench.row(video)
    bench.record("kill", **what, job=done["state"], attempt=done["attempt"])


def kill(bench: Bench) -> None:
    """Only the killed worker of `service`."""
    with bench.system("bench-compiled") as system:
        began = time.monotonic()
        system.start_supervisor()
        url = system.start_gateway()
        bench.record("ready", profile="bench-compiled", **bench.ready(system, began), facts=bench.facts())
        with Videos(url) as videos:
            _kill(bench, videos, system, num_inference_steps=3)
            bench.record("incidents", incidents=bench.incidents(videos))


def offload(bench: Bench, prefetch: str) -> None:
    """Layerwise offload: one start, one video of three steps."""
    name = f"bench-{prefetch}"
    with bench.system(name) as system:
        began = time.monotonic()
        system.start_supervisor()
        url = system.start_gateway()
        bench.record("ready", profile=name, **bench.ready(system, began), facts=bench.facts())
        with Videos(url) as videos:
            make_one(bench, videos, f"offload-{prefetch}", num_inference_steps=3)


@contextlib.contextmanager
def filled(gigabytes: float) -> Iterator[str]:
    """Another process holds the card but for so much; gives what it says."""
    filler = subprocess.Popen(
        [sys.executable, str(HERE / "filler.py"), str(gigabytes)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert filler.stdout is not None
        yield filler.stdout.readline().strip()
    finally:
        filler.kill()
        filler.wait()


def _incident(bench: Bench, videos: Videos, known: int) -> dict[str, Any]:
    """Wait for one more than `known`; seconds, and what is left on the card a second later."""
    began = time.monotonic()
    wait_for("an incident", lambda: len(bench.incidents(videos)) > known, 120, 0.1)
    seconds = _since(began)
    time.sleep(1)
    return {"incident_seconds": seconds, "used_mib_after": used_mib()}


def oom(bench: Bench, profile: str) -> None:
    """Another process takes the rest of the card while the engine warms up, and before a video is decoded."""
    with bench.system(profile) as system:
        began = time.monotonic()
        system.start_supervisor()
        url = system.start_gateway()
        with Videos(url) as videos:
            wait_for("warming", lambda: system.engine()["state"] == "warming", 200, 0.02)
            with filled(1.5) as words:
                used = used_mib()
                seen = _incident(bench, videos, 0)
            freed = time.monotonic()
            ready = bench.ready(system, freed)
            facts = {"filler": words, "used_mib_full": used, **seen, "ready_after_filler": ready}
            bench.record("oom-step", profile=profile, start_seconds=_since(began), **facts)
            video = videos.create(bench.fields(num_inference_steps=4))
            until(videos, video, lambda job: job["step"] >= 3)
            with filled(1.0) as words:
                used = used_mib()
                seen = _incident(bench, videos, 1)
            freed = time.monotonic()
            ready = bench.ready(system, freed)
            follow(videos, video)
            row = bench.row(video)
            facts = {"filler": words, "used_mib_full": used, **seen, "ready_after_filler": ready}
            facts |= {"job": row["state"], "attempt": row["attempt"], "engine": system.engine()}
            bench.record("oom-decode", profile=profile, **facts, incidents=bench.incidents(videos))


def shipped(bench: Bench, name: str, *, killed: bool) -> None:
    """A shipped profile, unchanged but for checkpoint, shift and warm-up steps: two videos in a row."""
    profile = f"shipped-{name}"
    size = {"size": "1280x720"} if bench.base == "h200" else {}
    with bench.system(profile) as system:
        began = time.monotonic()
        system.start_supervisor()
        url = system.start_gateway()
        bench.record(
            "ready", profile=profile, cache="cold", **bench.ready(system, began, 590), facts=bench.facts()
        )
        with Videos(url) as videos:
            began = time.monotonic()
            pair = [videos.create(bench.fields(num_inference_steps=steps, **size)) for steps in bench.steps]
            seen = follow_all(videos, pair, began)
            rows = [bench.row(video) for video in pair]
            entered = [{phase: at for at, number, phase, _ in seen if number == at_row} for at_row in (0, 1)]
            seconds = rows[0]["facts"]["seconds"]
            # From the end of decoding to the moment the backend gave the frames away, and from then on.
            tail = seconds["total"] - sum(value for key, value in seconds.items() if key != "total")
            gap = entered[1].get("text_encoding", 0) - entered[0].get("encoding", 0)
            bench.record(
                "pair",
                profile=profile,
                changes=seen,
                facts=[row["facts"] for row in rows],
                idle_seconds={"after_decoding": round(tail, 3), "to_next_job": round(gap, 3)},
                file=look(videos.content(pair[0])),
            )
            if killed:
                _kill(bench, videos, system, finish=False, num_inference_steps=3, **size)
            bench.record("incidents", profile=profile, incidents=bench.incidents(videos))


def follow_all(videos: Videos, pair: list[str], began: float) -> list[list[Any]]:
    """Every change of several jobs until all are over: seconds, number of the job, phase or end, step."""
    seen: list[list[Any]] = []
    last: dict[int, list[Any]] = {}

    def poll() -> bool:
        over = True
        for number, video in enumerate(pair):
            job = videos.get(video)
            now = [job["phase"] or job["status"], job["step"]]
            if last.get(number) != now:
                last[number] = now
                seen.append([_since(began), number, *now])
            over = over and job["status"] not in ("queued", "in_progress")
        return over

    wait_for("the videos", poll, 560, 0.01)
    return seen


def card(bench: Bench) -> None:
    """What only a card can do wrong, by the fault backend: it holds 8 GB, then breaks; ready again?"""
    for how in ("illegal_access", "hung_kernel", "out_of_memory"):
        script = bench.directory / f"{how}.json"
        hold = {"at": "load", "what": "card", "how": "hold", "gigabytes": 8, "times": None}
        fault = {"at": "step", "step": 3, "what": "card", "how": how}
        script.write_text(json.dumps({"step_seconds": 0.2, "faults": [hold, fault]}))
        bench_profiles.write_fault(bench.profiles, how, script)
        with bench.system(how) as system:
            system.start_supervisor()
            url = system.start_gateway()
            bench.ready(system, time.monotonic(), 90)
            with Videos(url) as videos:
                video = videos.create({"prompt": PROMPT, "size": "64x64", "num_frames": 9})
                until(videos, video, lambda job: job["step"] >= 2)
                before = used_mib() - bench.idle
                struck = time.monotonic()
                wait_for("the end is noticed", lambda: bench.incidents(videos), 60, 0.02)
                noticed = _since(struck)
                back = bench.memory_back()
                ready = bench.ready(system, struck, 90)
                follow(videos, video, 90)
                row = bench.row(video)
                bench.record(
                    "card-fault",
                    how=how,
                    used_mib_before=before,
                    noticed_seconds=noticed,
                    **back,
                    **ready,
                    job=row["state"],
                    attempt=row["attempt"],
                    incidents=bench.incidents(videos),
                )


SECTIONS: dict[str, Callable[[Bench], None]] = {
    "service": service,
    "kill": kill,
    "async": lambda bench: offload(bench, "async"),
    "sync": lambda bench: offload(bench, "sync"),
    "oom": lambda bench: oom(bench, "bench-eager"),
    "oom-expandable": lambda bench: oom(bench, "bench-expandable"),
    "h200": lambda bench: shipped(bench, "h200", killed=False),
    "h200-fast": lambda bench: shipped(bench, "h200-fast", killed=True),
    "card": card,
}


def machine() -> dict[str, Any]:
    """What it ran on."""
    from framekeeper.profiles import nvidia  # noqa: PLC0415

    cards, driver = nvidia.query()
    names = ("torch", "vllm", "vllm-omni", "diffusers", "transformers", "fa3-fwd", "av", "numpy")
    versions = {}
    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return {
        "cards": [f"{card.name} sm{card.capability} {card.memory_bytes >> 20} MiB" for card in cards],
        "driver": driver,
        "python": sys.version.split()[0],
        "versions": versions,
        "cpus": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "kernel": os.uname().release,
    }


def main() -> int:
    """Run the sections; 1 when one of them failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("sections", nargs="+", choices=SECTIONS)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--base", default="h200", help="profile that all extend; cpu-tiny to rehearse")
    parser.add_argument("--engine-python", type=Path, default=Path(sys.executable))
    parser.add_argument("--size", default="832x480")
    parser.add_argument("--frames", type=int, default=81)
    parser.add_argument("--steps", type=int, nargs=2, default=(6, 2), help="of the pair of a shipped profile")
    arguments = parser.parse_args()
    # So that a run that is cut short leaves no engine behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    directory = Path(tempfile.mkdtemp(prefix="fk-gpu-"))
    bench = Bench(arguments, directory)
    bench.record("machine", **machine(), idle_mib=bench.idle, threads=threading.active_count())
    failed = 0
    with embedded_postgres(directory / "postgres") as url:
        bench.url = url
        for name in arguments.sections:
            began = time.monotonic()
            try:
                SECTIONS[name](bench)
            except Exception as error:
                failed = 1
                traceback.print_exc()
                bench.record("failed", section=name, error=f"{type(error).__name__}: {error}"[:2000])
            print(f"== {name}: {_since(began)} s", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
