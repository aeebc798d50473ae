"""How long `profile check` takes for 1,000 profiles; the aim is 2 s on two cores.

    python bench/profile_check.py [COUNT] [--record]

Copies of the shipped profiles, each under its own name, are written to a temporary directory and checked as
the command does: read, extended, validated, every rung, every rule. `--record` appends the result to
bench/results/profile_check.jsonl.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

from framekeeper.profiles.load import examine, profile_names

ROOT = Path(__file__).parents[1]
CONFIGS = ROOT / "configs" / "profiles"
RESULTS = ROOT / "bench" / "results" / "profile_check.jsonl"


def main(count: int, record: bool) -> int:
    shipped = profile_names(CONFIGS)
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        for name in shipped:
            shutil.copy(CONFIGS / f"{name}.yaml", directory)
        names = []
        for index in range(count):
            source = shipped[index % len(shipped)]
            names.append(f"copy-{index}-{source}")
            shutil.copy(CONFIGS / f"{source}.yaml", directory / f"{names[-1]}.yaml")
        seconds = []
        for name in names:
            begin = time.perf_counter()
            examine(name, directory)
            seconds.append(time.perf_counter() - begin)
    result = {
        "profiles": count,
        "seconds": round(sum(seconds), 3),
        "median_ms": round(statistics.median(seconds) * 1e3, 3),
        "slowest_ms": round(max(seconds) * 1e3, 3),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
    }
    print(json.dumps(result))
    if record:
        RESULTS.parent.mkdir(parents=True, exist_ok=True)
        with RESULTS.open("a", encoding="utf-8") as file:
            file.write(json.dumps(result) + "\n")
    return 0 if result["seconds"] <= 2 * count / 1000 else 1


if __name__ == "__main__":
    numbers = [int(argument) for argument in sys.argv[1:] if argument.isdigit()]
    sys.exit(main(numbers[0] if numbers else 1000, "--record" in sys.argv))
