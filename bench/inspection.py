"""What looking at every job's frames costs: seconds and memory for the shapes that profiles admit.

Run with the engine's Python or the tests' (numpy is all it needs): `python bench/inspection.py`. Appends one
line to bench/results/inspection.jsonl.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import time
from pathlib import Path

import numpy as np

from framekeeper.media.inspect import inspect

RESULTS = Path(__file__).with_name("results") / "inspection.jsonl"
#: Height, width, frames; and seconds of the fastest job of that shape measured on an H200 (40 steps, fp8
#: linears compiled for 480p, bf16 compiled for 720p; decode included), from the project's measurements.
SHAPES = {"480p": (480, 832, 81, 2 * 40 * 2.155), "720p": (720, 1280, 81, 2 * 40 * 10.03)}
RUNS = 5


def seconds_of(frames: np.ndarray) -> list[float]:
    """Wall-clock seconds of some inspections, after one that does not count."""
    inspect(frames)
    measured = []
    for _ in range(RUNS):
        began = time.perf_counter()
        found = inspect(frames)
        measured.append(time.perf_counter() - began)
        assert found.fault is None
    return measured


def main() -> None:
    """Measure and print a table."""
    rows = {}
    for name, (height, width, count, job_seconds) in SHAPES.items():
        frames = np.random.default_rng(0).random((count, height, width, 3), dtype=np.float32)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        measured = seconds_of(frames)
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        median = statistics.median(measured)
        rows[name] = {
            "seconds": round(median, 3),
            "share": median / job_seconds,
            "extra_mib": round(grown, 1),
        }
        print(
            f"{name}: {median:.2f} s, {median / job_seconds:.2%} of a job of {job_seconds:.0f} s, "
            f"{grown:.0f} MiB more"
        )
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    record = {"date": time.strftime("%Y-%m-%d"), "commit": commit, "shapes": rows}
    with RESULTS.open("a") as file:
        file.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
