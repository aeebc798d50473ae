"""The unattended queue: a section is ended at its limit with all its processes, and told in the results."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from gpu_bench import GPU, script

from system import PROJECT, wait_for

plan = script("plan")
everything = script("all")

SMI = """#!/bin/sh
# What an H200 says, in the forms that are asked for.
case "$*" in
  *uuid,name,compute_cap,memory.total,driver_version*) echo "GPU-1, NVIDIA H200, 9.0, 143771, 580.95.05";;
  *uuid,name*) echo "GPU-1, NVIDIA H200, 9.0, 143771, 4, 580.95.05, Enabled, 0, Disabled";;
  *query-gpu=memory.used*) echo 4;;
  "") echo "| NVIDIA-SMI 580.95.05    Driver Version: 580.95.05    CUDA Version: 13.0 |";;
esac
"""


def section(name: str, command: str, **changes: Any) -> Any:
    whole = {"name": name, "asks": "?", "command": command, "seconds": 1, "value": 5, "predicts": "1 s"}
    return plan.Section(**(whole | {"proof": ({"what": name},)} | changes))


def not_running(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def lines(machine: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in machine.results.read_text().splitlines()]


@pytest.mark.slow
def test_sections_that_pass_fail_and_hang_are_told_and_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(everything, "GRACE_SECONDS", 1.0)
    monkeypatch.setattr(plan.Section, "limit", lambda self, left: min(2.0, left))
    machine = everything.Machine(tmp_path)
    machine.began()
    sections = [
        section("passes", 'echo "{\\"what\\": \\"passes\\"}" >> $RESULTS'),
        section("fails", "echo words; exit 3"),
        section("hangs", f"trap '' TERM; sleep 600 & echo $! > {tmp_path}/pid; wait; sleep 600"),
        section("large", "true", seconds=5000),
    ]
    everything.queue(machine, sections, 60)
    told = {line["name"]: line for line in lines(machine) if line["what"] in ("section", "left out")}
    assert (told["passes"]["status"], told["passes"]["late"]) == (0, False)
    assert told["fails"]["status"] == 3
    assert told["hangs"]["late"]
    assert told["hangs"]["predicted"] == "1 s"
    assert {"what": "passes"} in lines(machine)
    assert (machine.out / "fails.log").read_text() == "words\n"
    assert "large" not in told, "what the budget cannot hold is never begun"
    assert everything.finished(machine)
    child = int((tmp_path / "pid").read_text())
    # Ended at once; that somebody reaps it may take a moment.
    wait_for("the child has ended", lambda: not_running(child), 10)


def test_a_section_is_left_out_when_too_little_is_left(tmp_path: Path) -> None:
    machine = everything.Machine(tmp_path)
    machine.out.mkdir()
    (machine.out / "began").write_text(str(time.time() - 1000))
    everything.queue(machine, [section("late", "touch never", seconds=100)], 1050)
    assert [line["what"] for line in lines(machine)] == ["left out"]


@pytest.mark.slow
def test_locks_and_masks_as_they_run_there_on_a_card_that_is_only_said_to_be_there(tmp_path: Path) -> None:
    smi = tmp_path / "nvidia-smi"
    smi.write_text(SMI)
    smi.chmod(0o755)
    out = tmp_path / "out.jsonl"
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("FRAMEKEEPER_")}
    ended = subprocess.run(
        [sys.executable, GPU / "run.py", "locks", "--model", tmp_path, "--out", out],
        env=inherited | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "FRAMEKEEPER_DOCTOR": "false"},
        cwd=PROJECT, capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-2000:]
    (told,) = (each for each in map(json.loads, out.read_text().splitlines()) if each["what"] == "locks")
    assert told["masks"] == ["CUDA_VISIBLE_DEVICES=GPU-1"]
    assert told["second_status"] == 2
    assert "device GPU-1 is held by gpu-locks/0" in told["second_says"][0]
    assert told["first"] == "ready"


@pytest.mark.slow
def test_an_engine_that_is_refused_costs_seconds_and_not_its_whole_limit(tmp_path: Path) -> None:
    smi = tmp_path / "nvidia-smi"
    smi.write_text(SMI)
    smi.chmod(0o755)
    out = tmp_path / "out.jsonl"
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("FRAMEKEEPER_")}
    began = time.monotonic()
    ended = subprocess.run(
        [sys.executable, GPU / "run.py", "oom", "h200", "--model", tmp_path, "--out", out],
        env=inherited | {"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        cwd=PROJECT, capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip
    assert ended.returncode == 1
    assert time.monotonic() - began < 60
    told = [each for each in map(json.loads, out.read_text().splitlines()) if each["what"] == "failed"]
    assert [each["section"] for each in told] == ["oom", "h200"]
    assert all("the supervisor has ended" in each["error"] for each in told)
