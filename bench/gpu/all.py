"""Everything on the bench machine, with one command: `python3 bench/gpu/all.py LOAD… [--wait SECONDS]`.

Unpacks the loads of pack.py that are given, makes the checkpoint, and as soon as both loads are there runs
plan.py's sections in a session of its own, unattended, until the budget is spent. Where only one load can be
carried at a time:

    python3 bench/gpu/all.py build/gpu/carry/1
    python3 bench/gpu/all.py build/gpu/carry/2 --wait 560
    python3 bench/gpu/all.py --wait 560                     # again, until it says finished

Results so far are copied to $OUT (build/gpu/out) at the end of each call. Standard library alone.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import plan
import unpack

HERE = Path(__file__).resolve().parent
#: A section that was asked to end gets this long, to stop its supervisor and database.
GRACE_SECONDS = 20.0


class Machine:
    """Where things lie on the bench machine."""

    def __init__(self, root: Path) -> None:
        self.home = root / "framekeeper"
        self.model = root / "model"
        self.profiles = root / "profiles"
        self.out = root / "out"
        self.results = self.out / "gpu.jsonl"

    @property
    def python(self) -> Path:
        """The environment that unpack.py made."""
        return self.home / "bin" / "python"

    def environment(self) -> dict[str, str]:
        """For sections: where things are, as their commands name them."""
        places = {
            "PYTHON": self.python,
            "MODEL": self.model,
            "PROFILES": self.profiles,
            "RESULTS": self.results,
        }
        return os.environ | {key: str(path) for key, path in places.items()} | {"PYTHONUNBUFFERED": "1"}

    def record(self, what: str, **facts: Any) -> None:
        """One line of results."""
        line = {"what": what, "at": datetime.now(UTC).isoformat(timespec="seconds"), **facts}
        with self.results.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def began(self) -> float:
        """When the first call was made, in seconds since 1970; the budget counts from then."""
        self.out.mkdir(parents=True, exist_ok=True)
        stamp = self.out / "began"
        if not stamp.exists():
            stamp.write_text(str(time.time()))
        return float(stamp.read_text())

    def whole(self) -> bool:
        """Whether both loads are there."""
        return any(self.home.glob("lib/python3.*/site-packages/av")) and (self.home / "loaded").exists()


def prepare(machine: Machine, loads: Sequence[Path]) -> None:
    """Unpack, then make checkpoint and profiles once. Raises CalledProcessError."""
    for load in loads:
        unpack.main([str(load), str(machine.home)])
    (machine.home / "loaded").touch()
    if not (machine.model / "model_index.json").exists():
        run = [machine.python, HERE / "checkpoint.py", machine.model]
        subprocess.run(run, check=True, env=machine.environment())
        subprocess.run([machine.python, HERE / "grow.py", "100"], check=False)
    if not machine.profiles.exists():
        code = "import sys, pathlib; sys.path.insert(0, sys.argv[1]); import profiles; "
        code += "profiles.write(pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3]))"
        subprocess.run([machine.python, "-c", code, HERE, machine.profiles, machine.model], check=True)


def run_section(machine: Machine, section: plan.Section, left: float) -> None:
    """One section in a process group of its own, ended at its limit; its output is NAME.log."""
    began = time.monotonic()
    limit = section.limit(left)
    with (machine.out / f"{section.name}.log").open("ab") as log:
        process = subprocess.Popen(
            ["bash", "-c", section.command],
            stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            env=machine.environment(), cwd=plan.PROJECT, start_new_session=True,
        )  # fmt: skip
        late = False
        try:
            process.wait(limit)
        except subprocess.TimeoutExpired:
            late = True
        _end(process)
    facts = {"seconds": round(time.monotonic() - began, 1), "estimate": section.seconds}
    machine.record(
        "section",
        name=section.name,
        status=process.returncode,
        late=late,
        predicted=section.predicts,
        **facts,
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM, then SIGKILL, to all that is left of its group."""
    for word in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, word)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_SECONDS)
        if process.returncode is not None and not _alive(process.pid):
            return


def _alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def queue(machine: Machine, sections: Sequence[plan.Section], budget: float, *, named: bool = False) -> None:
    """Every section that still fits, in the plan's order or as they are `named`; results name the others."""
    end = machine.began() + budget
    for each in plan.order(sections, budget + plan.SETUP_SECONDS, named=named)[0]:
        left = end - time.time()
        if left < each.seconds:
            machine.record("left out", name=each.name, estimate=each.seconds, seconds_left=round(left))
            continue
        run_section(machine, each, left)
    (machine.out / "finished").touch()


def start_queue(machine: Machine, options: argparse.Namespace) -> None:
    """The queue goes on when this call ends."""
    (machine.out / "finished").unlink(missing_ok=True)
    command = [sys.executable, str(HERE / "all.py"), "--root", str(options.root), "--queue"]
    command += ["--budget", str(options.budget)]
    command += ["--sections", *options.sections] if options.sections else []
    with (machine.out / "queue.log").open("ab") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    (machine.out / "queue.pid").write_text(str(process.pid))


def running(machine: Machine) -> bool:
    """Whether a queue is at work."""
    try:
        return _alive(int((machine.out / "queue.pid").read_text())) and not finished(machine)
    except (OSError, ValueError):
        return False


def finished(machine: Machine) -> bool:
    """Whether the queue has come to its end."""
    return (machine.out / "finished").exists()


def collect(machine: Machine, target: Path) -> None:
    """Copy results and logs; show the last results."""
    target.mkdir(parents=True, exist_ok=True)
    for file in machine.out.iterdir():
        if file.suffix in (".jsonl", ".log"):
            shutil.copyfile(file, target / file.name)
    if machine.results.exists():
        for line in machine.results.read_text(encoding="utf-8").splitlines()[-40:]:
            print(line[:600])
    print("finished" if finished(machine) else "not finished: call again with --wait", flush=True)


def main(arguments: Sequence[str]) -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("loads", nargs="*", type=Path)
    parser.add_argument("--sections", nargs="+", default=[], choices=[each.name for each in plan.SECTIONS])
    parser.add_argument("--budget", type=float, default=plan.BUDGET, help="seconds from the first call on")
    parser.add_argument("--wait", type=float, default=0, help="seconds at most")
    parser.add_argument("--root", type=Path, default=Path("/opt"))
    parser.add_argument("--queue", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    machine = Machine(options.root)
    began = machine.began()
    sections = plan.chosen(options.sections, plan.results())
    if options.queue:
        queue(machine, sections, options.budget, named=bool(options.sections))
        return 0
    if options.loads:
        prepare(machine, options.loads)
    if machine.whole() and not running(machine) and (options.loads or options.sections):
        start_queue(machine, options)
    end = time.monotonic() + options.wait
    while time.monotonic() < end and running(machine):
        time.sleep(0.5)
    collect(machine, Path(os.environ.get("OUT", plan.PROJECT / "build" / "gpu" / "out")))
    print(f"{time.time() - began:.0f} s since the first call", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
