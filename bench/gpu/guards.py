"""Sections of run.py about what keeps an engine safe: locks and masks, the doctor, smaller cards."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from session import PROMPT, Bench, filled, follow, look, since, used_mib, worker_pid

import profiles as bench_profiles
from framekeeper.profiles.load import load_profile
from framekeeper.profiles.memory import budget
from system import System
from videos import Videos

GIB = 2**30
#: Of the bench's checkpoint, in parameters; see checkpoint.py.
TEXT_ENCODER = 2 * (4 * 4096 * 4096 + 3 * 4096 * 10_240)


def locks(bench: Bench) -> None:
    """The worker's own view of the cards, and a second supervisor that wants the same one."""
    script = bench.directory / "locks.json"
    script.write_text(json.dumps({"step_seconds": 0.05}))
    bench_profiles.write_fault(bench.profiles, "locks", script)
    with bench.system("locks") as system:
        system.start_supervisor()
        bench.ready(system, time.monotonic(), 90)
        worker = Path(f"/proc/{worker_pid(system)}/environ").read_bytes().split(b"\0")
        masks = [each.decode() for each in worker if each.startswith(b"CUDA_VISIBLE_DEVICES=")]
        second = System(bench.directory / "second", bench.url, **system.settings)
        second.settings |= {"DEVICE_LOCKS": str(system.directory / "locks"), "HOST_ID": "second"}
        second.start_supervisor()
        assert second.supervisor is not None
        status = second.supervisor.wait(60)
        words = second.log().strip().splitlines()[-1:]
        bench.record(
            "locks", masks=masks, second_status=status, second_says=words, first=system.engine()["state"]
        )


def doctor(bench: Bench) -> None:
    """`framekeeper doctor --json` for a resident profile and for one that page-locks its layers."""
    for profile in ("shipped-h200", "bench-async"):
        began = time.monotonic()
        settings = {
            "PROFILES": str(bench.profiles),
            "ENGINE_PYTHON": str(bench.engine_python),
            "VAR": str(bench.directory / "doctor"),
        }
        environment = os.environ | {f"FRAMEKEEPER_{key}": value for key, value in settings.items()}
        command = [sys.executable, "-m", "framekeeper", "doctor", profile, "--json"]
        ended = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=240
        )
        record: dict[str, Any] = json.loads(ended.stdout) if ended.stdout else {}
        found = [each for each in record.get("findings", []) if each["severity"] != "ok"]
        probes = record.get("readings", {}).get("probes")
        facts = {"status": ended.returncode, "findings": found, "probes": probes, "seconds": since(began)}
        facts["stderr"] = ended.stderr[-2000:]
        bench.record("doctor", profile=profile, **facts)


def small_card(bench: Bench, gib: int) -> None:
    """A shipped profile while a filler holds all of the card but `gib`: ready, one video, peak, incidents."""
    name, size = bench_profiles.CARDS[gib]
    profile = f"card-{gib}"
    needed = budget(load_profile(profile, bench.profiles), text_encoder=TEXT_ENCODER)
    with filled(gib * GIB / 1e9) as words:
        held = used_mib()
        with bench.system(profile) as system:
            began = time.monotonic()
            system.start_supervisor()
            url = system.start_gateway()
            ready = bench.ready(system, began, 590)
            with Videos(url) as videos:
                wanted = {"prompt": PROMPT, "seed": 7, "num_inference_steps": 2, **bench.request}
                video = videos.create(wanted | ({} if bench.base != "h200" else {"size": size}))
                changes = follow(videos, video, 500)
                row = bench.row(video)
                file = look(videos.content(video)) if row["state"] == "completed" else None
                bench.record(
                    "small-card",
                    gib=gib,
                    profile=name,
                    filler=words,
                    held_mib=held,
                    predicted_gb=round(needed.bytes / 1e9, 2) if needed else None,
                    job=row["state"],
                    facts=row["facts"],
                    load_facts=bench.facts(),
                    engine_mib=used_mib() - held,
                    changes=changes,
                    file=file,
                    incidents=bench.incidents(videos),
                    **ready,
                )
            # The filler's memory is not the engine's to give back.
            bench.idle = held
    bench.idle = 0
