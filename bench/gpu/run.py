"""Run Framekeeper on a card and write down what it did: `run.py --model DIRECTORY --out FILE SECTION…`.

Everything is the product: embedded PostgreSQL, gateway, supervisor, worker. Sections, in the order given:

* `service`: start to ready; a video of 832x480x81 with a report a step; cancel between steps; worker killed
  with SIGKILL in the middle of a job: memory back, ready again, the job made all the same.
* `kill`: the last of these alone.
* `async`, `sync`: layerwise offload with either prefetch: ready, one video, seconds a step, peak memory.
* `oom`, `oom-expandable`: another process fills the card while the engine warms up, and before decoding.
* `h200`, `h200-fast`: as shipped, at 1280x720x81: ready, two videos queued together and the gap between them;
  after the fast one the worker is killed, with a warm compile cache.
* `locks`, `doctor`, `card-80`, `card-48`, `card-32`, `card-24`: see guards.py.
* `card`: an illegal access, a kernel that never ends and a full card, by the fault backend.

Each result is one line of JSON in FILE. Run it with the environment that unpack.py made.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import guards
import psutil
from session import (
    PROMPT,
    Bench,
    filled,
    follow,
    look,
    make_one,
    since,
    until,
    used_mib,
    wait_for,
    worker_pid,
)

import profiles as bench_profiles
from framekeeper.database.embedded import embedded_postgres
from system import System
from videos import Videos


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
    seconds = since(began)
    following = until(videos, after, lambda job: job["status"] == "in_progress" and bool(job["phase"]))
    gap = since(began) - seconds
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


def _incident(bench: Bench, videos: Videos, known: int) -> dict[str, Any]:
    """Wait for one more than `known`; seconds, and what is left on the card a second later."""
    began = time.monotonic()
    wait_for("an incident", lambda: len(bench.incidents(videos)) > known, 120, 0.1)
    seconds = since(began)
    time.sleep(1)
    return {"incident_seconds": seconds, "used_mib_after": used_mib()}


def oom(bench: Bench, profile: str) -> None:
    """Another process takes the rest of the card while the engine warms up, and before a video is decoded."""
    with bench.system(profile) as system:
        began = time.monotonic()
        system.start_supervisor()
        url = system.start_gateway()
        with Videos(url) as videos:
            bench.reach(system, "warming", 200)
            with filled(1.5) as words:
                used = used_mib()
                seen = _incident(bench, videos, 0)
            freed = time.monotonic()
            ready = bench.ready(system, freed)
            facts = {"filler": words, "used_mib_full": used, **seen, "ready_after_filler": ready}
            bench.record("oom-step", profile=profile, start_seconds=since(began), **facts)
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
                seen.append([since(began), number, *now])
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
                noticed = since(struck)
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
    "locks": guards.locks,
    "doctor": guards.doctor,
    **{f"card-{gib}": partial(guards.small_card, gib=gib) for gib in bench_profiles.CARDS},
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
            print(f"== {name}: {since(began)} s", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
