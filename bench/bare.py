"""From `make run` on a bare checkout to the first finished video, stage by stage."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import IO

from system import PROJECT, free_port
from videos import SMALL, Videos

#: An installation over a slow line included.
LONGEST_SECONDS = 1500.0
STOP_SECONDS = 90.0

#: A line that matches tells the end of this stage (a group in the name is filled in).
ENDS = (
    (re.compile(r"\[\d/5\] (?P<title>[a-z]+)"), "runtime: {title}"),
    # The Makefile's own steps: what, three dots, seconds.
    (re.compile(r".* \.\.\. \d+ s"), "gateway environment"),
    (re.compile(r"(database|schema): .*\(\d+\.\d s\)"), "database and schema"),
    (re.compile(r"checkpoint: .*\(\d+\.\d s\)"), "checkpoint"),
)
#: A line of the engine tells what begins; the first that matches counts.
ENGINE = (
    ("ready: ", "ready"),
    ("warming", "warm-up"),
    ("dummy", "engine: upstream's dummy run"),
    ("importing", "engine: imports"),
    ("loading", "engine: weights"),
)
BEFORE_ENGINE = "supervisor and gateway start"


@dataclass
class Stages:
    """Seconds by stage, from the lines that `make run` prints and when they came."""

    seconds: dict[str, float] = field(default_factory=dict)
    ready: bool = False
    _last: float = 0.0
    _engine: str = BEFORE_ENGINE

    def line(self, text: str, at: float) -> None:
        """Enter a line that came `at` seconds after the start."""
        if text.startswith("engine: "):
            self._charge(self._engine, at)
            self._engine = next((name for words, name in ENGINE if words in text), self._engine)
            self.ready = self.ready or self._engine == "ready"
            return
        for pattern, stage in ENDS:
            if match := pattern.match(text):
                self._charge(stage.format(**match.groupdict()), at)
                return

    def _charge(self, stage: str, at: float) -> None:
        self.seconds[stage] = self.seconds.get(stage, 0.0) + at - self._last
        self._last = at


@dataclass(frozen=True)
class Bare:
    """Seconds by stage, and from the start to the downloaded video; seconds that the clean end took."""

    stages: dict[str, float]
    total: float
    stop: float


def clone(into: Path) -> Path:
    """A fresh checkout of the commit that is checked out here."""
    subprocess.run(["git", "clone", "--quiet", PROJECT, into], check=True)
    head = subprocess.run(
        ["git", "-C", PROJECT, "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()
    subprocess.run(["git", "-C", into, "checkout", "--quiet", "--detach", head], check=True)
    return into


def measure(directory: Path) -> Bare:
    """Clone into `directory`, run, make one video, end it with Ctrl-C."""
    checkout = clone(directory / "framekeeper")
    port = free_port()
    lines: Queue[tuple[float, str]] = Queue()
    began = time.monotonic()
    with _make_run(checkout, port, directory / "locks") as process:
        assert process.stdout is not None
        Thread(target=_stamp, args=(process.stdout, lines, began), daemon=True).start()
        stages = Stages()
        seen: list[str] = []
        while not stages.ready:
            if time.monotonic() - began > LONGEST_SECONDS:
                raise TimeoutError(f"make run was not ready after {LONGEST_SECONDS:g} s")
            try:
                at, text = lines.get(timeout=1)
            except Empty:
                if process.poll() is not None:
                    raise RuntimeError(f"make run ended: {' / '.join(seen[-5:])}") from None
                continue
            seen.append(text)
            stages.line(text, at)
        with Videos(f"http://127.0.0.1:{port}") as videos:
            video_id = videos.create(SMALL)
            videos.completed(video_id)
            if len(videos.content(video_id)) < 1000:
                raise RuntimeError("the first video is empty")
        total = time.monotonic() - began
        stages.seconds["first job, downloaded"] = total - sum(stages.seconds.values())
        return Bare(stages.seconds, total, _stop(process))


@contextmanager
def _make_run(checkout: Path, port: int, locks: Path) -> Iterator[subprocess.Popen[str]]:
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("FRAMEKEEPER_", "VIRTUAL_ENV", "MAKE", "MFLAGS", "PYTHONPATH"))
    }
    environment["FRAMEKEEPER_SUPERVISOR_PORT"] = str(free_port())
    # Another engine on this machine must not be waited for.
    environment["FRAMEKEEPER_DEVICE_LOCKS"] = str(locks)
    process = subprocess.Popen(
        ["make", "run", f"PORT={port}"],
        cwd=checkout,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        _stop(process)


def _stop(process: subprocess.Popen[str]) -> float:
    """Ctrl-C to the whole group, as a terminal sends it; returns the seconds until make had ended."""
    began = time.monotonic()
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGINT)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return time.monotonic() - began


def _stamp(output: IO[str], lines: Queue[tuple[float, str]], began: float) -> None:
    for line in output:
        lines.put((time.monotonic() - began, line.rstrip("\n")))
