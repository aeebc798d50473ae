"""Measures how honest refusals and estimates are: Retry-After beside the time until there was room, and
`estimated_seconds` beside the time until the job was done.

    python bench/admission.py [--fault] [--trials N] [--no-record]

Real vllm-omni on the CPU with the small checkpoint; with `--fault`, the fault backend with known times. Exit
status 1 when the median error of any part is more than 25 %.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

PROJECT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(PROJECT / "tests"))

import machine  # noqa: E402
from framekeeper.database.embedded import embedded_postgres  # noqa: E402
from framekeeper.database.migrate import migrate  # noqa: E402
from report import Report  # noqa: E402
from system import System, fault_profile  # noqa: E402
from videos import LARGE, SMALL  # noqa: E402

RESULTS = PROJECT / "bench" / "results" / "admission.jsonl"
RUNTIME = PROJECT / ".runtimes" / "omni-0.30-cpu" / "bin" / "python"
ALLOWED = 0.25
ASK_SECONDS = 0.02
#: About a second and a half on two cores, so that a tenth of a second of noise is no large part.
MEDIUM: dict[str, Any] = LARGE | {"num_inference_steps": 20}
UNSEEN = "estimated_seconds of shapes not seen before"
#: Within and beyond what MIXED measures. Each is asked for once, so each is estimated from the others.
UNSEEN_SHAPES = tuple(
    SMALL | {"size": size, "num_frames": frames, "num_inference_steps": steps}
    for size, frames, steps in (
        ("128x128", 49, 30), ("96x96", 25, 12), ("112x112", 49, 15), ("128x64", 17, 40), ("64x128", 33, 8),
        ("128x128", 33, 40), ("80x80", 49, 25),
    )
)  # fmt: skip
MIXED = (SMALL, MEDIUM, LARGE | {"num_inference_steps": 10}, SMALL, MEDIUM)


class Service:
    """A gateway under test."""

    def __init__(self, url: str) -> None:
        self.client = httpx.Client(base_url=url, timeout=30, trust_env=False)

    def submit(self, fields: dict[str, Any]) -> httpx.Response:
        answer = self.client.post("/v1/videos", data=fields)
        assert answer.status_code in (200, 429), answer.text
        return answer

    def finish(self, video_id: str) -> float:
        """Wait for a job's end; returns the moment."""
        while True:
            video = self.client.get(f"/v1/videos/{video_id}").json()
            if video["status"] not in ("queued", "in_progress"):
                assert video["status"] == "completed", video
                return time.monotonic()
            time.sleep(ASK_SECONDS)

    def empty(self) -> None:
        """Cancel what waits, and wait for what runs."""
        for video in self.client.get("/v1/videos?limit=100").json()["data"]:
            if video["status"] in ("queued", "in_progress"):
                self.client.delete(f"/v1/videos/{video['id']}")
        while any(model["running"] + model["waiting"] for model in self.lines()):
            time.sleep(0.1)

    def lines(self) -> list[dict[str, Any]]:
        models: list[dict[str, Any]] = self.client.get("/v1/queue").json()["models"]
        return models


@contextmanager
def serving(home: Path, *, fault: bool, **settings: Any) -> Iterator[Service]:
    """Run the whole system with these settings."""
    if fault:
        # 0.075 s a step: 20 steps are the 1.5 s that MEDIUM takes.
        profile = fault_profile(home / "profiles", [], step_seconds=0.075)
        settings |= {"profile": profile, "engine_python": sys.executable}
    else:
        settings |= {"profile": "cpu-tiny", "engine_python": RUNTIME, "model": home.parent / "model"}
    with embedded_postgres(home / "postgres", throwaway=True) as database:
        migrate(database)
        system = System(home / "system", database, gateway_processes=1, **settings)
        try:
            system.start_supervisor()
            system.wait_ready(240)
            yield Service(system.start_gateway())
            system.close()
        finally:
            system.abandon()


def until_room(service: Service, fields: dict[str, Any]) -> tuple[float, float]:
    """Fill the line until it refuses; Retry-After, and the seconds until it took one more."""
    while (answer := service.submit(fields)).status_code != httpx.codes.TOO_MANY_REQUESTS:
        pass
    refused = time.monotonic()
    assert answer.json()["error"]["code"] == "queue_full"
    told = float(answer.headers["retry-after-ms"]) / 1e3
    assert int(answer.headers["retry-after"]) >= told
    while service.submit(fields).status_code == httpx.codes.TOO_MANY_REQUESTS:
        time.sleep(ASK_SECONDS)
    return told, time.monotonic() - refused


def measure(report: Report, home: Path, *, fault: bool, trials: int) -> dict[str, float]:
    """Median relative error of each part."""
    errors: dict[str, float] = {}

    def note(name: str, pairs: list[tuple[float, float]]) -> None:
        relative = [told / actual - 1 for told, actual in pairs]
        report.add("told beside what came", f"{name}: told", "s", [told for told, _ in pairs])
        report.add("told beside what came", f"{name}: came", "s", [actual for _, actual in pairs])
        report.add("told beside what came", f"{name}: error", "%", [100 * each for each in relative])
        errors[name] = statistics.median(abs(each) for each in relative)

    with serving(home / "number", fault=fault, queue_jobs=4) as service:
        for fields in (SMALL, MEDIUM, MEDIUM):
            service.finish(service.submit(fields).json()["id"])
        note("Retry-After, bound in number", [until_room(service, MEDIUM) for _ in range(trials)])
    with serving(home / "seconds", fault=fault, queue_seconds=6) as service:
        for fields in (SMALL, MEDIUM, MEDIUM):
            service.finish(service.submit(fields).json()["id"])
        note("Retry-After, bound in seconds", [until_room(service, MEDIUM) for _ in range(trials)])
        service.empty()
    with serving(home / "estimates", fault=fault) as service:
        for fields in (*MIXED, *MIXED):
            service.finish(service.submit(fields).json()["id"])
        pairs = []
        for _ in range(max(1, trials // 2)):
            began = [(time.monotonic(), service.submit(fields).json()) for fields in MIXED]
            pairs += [
                (float(video["estimated_seconds"]), service.finish(video["id"]) - at) for at, video in began
            ]
        note("estimated_seconds of five jobs of three shapes", pairs)
        pairs = []
        for fields in UNSEEN_SHAPES:
            at, video = time.monotonic(), service.submit(fields).json()
            pairs.append((float(video["estimated_seconds"]), service.finish(video["id"]) - at))
        note(UNSEEN, pairs)
    return errors


def main() -> int:
    """Exit status as in the module's docstring."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--fault", action="store_true", help="the fault backend instead of vllm-omni")
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--no-record", action="store_true", help="do not append to the results")
    arguments = parser.parse_args()
    head = machine.revision(PROJECT) | {"fault": arguments.fault, "machine": machine.facts()}
    head["load_before"] = machine.load()
    report = Report()
    with tempfile.TemporaryDirectory(prefix="framekeeper-bench-") as temporary:
        home = Path(temporary)
        home.chmod(0o755)
        if not arguments.fault:
            subprocess.run([RUNTIME, "-m", "framekeeper.checkpoint.tiny", home / "model"], check=True)
        errors = measure(report, home, fault=arguments.fault, trials=arguments.trials)
    report.told["median error"] = {name: f"{error:.1%}" for name, error in errors.items()}
    report.show()
    if not arguments.no_record:
        report.append(RESULTS, head)
    return int(max(errors.values()) > ALLOWED)


if __name__ == "__main__":
    sys.exit(main())
