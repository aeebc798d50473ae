"""What a person sees meanwhile: a bar in a terminal, nothing elsewhere."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

STATES = {
    "starting": "is being started",
    "loading": "is loading the model",
    "warming": "is warming up",
    "blocked": "waits",
    "restarting": "ended and is being started again",
    "failed": "has failed",
    "stopped": "is stopped",
}


class Display:
    """The progress of one job on standard error. Standard output is for the result alone."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.console = Console(stderr=True)
        self.bar = None if quiet or not sys.stderr.isatty() else _bar(self.console)
        self._said = False

    def __enter__(self) -> Self:
        if self.bar:
            self.task = self.bar.add_task("Submitting", total=100, left="")
            self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bar:
            self.bar.stop()

    def show(self, job: dict[str, Any]) -> None:
        """Bring the bar up to date."""
        if self.bar:
            left = job.get("estimated_seconds")
            self.bar.update(
                self.task,
                description=sentence(job),
                completed=job.get("progress") or 0,
                left=f"about {duration(left)} left" if left else "",
            )

    def waits(self, reason: str) -> None:
        """Why nothing happens: in the bar, or as one line."""
        if self.bar:
            self.bar.update(self.task, description=reason, left="")
        elif not self._said:
            self._said = True
            print(reason, file=sys.stderr, flush=True)  # noqa: T201

    def told(self, text: str) -> None:
        """What is being done at the moment."""
        if self.bar:
            self.bar.update(self.task, description=text, left="")


def sentence(job: dict[str, Any]) -> str:
    """How a job is, in a few words."""
    status = str(job.get("status", "unknown"))
    if status == "queued":
        place = job.get("place")
        if place is None:
            return "Waiting"
        return "Next in line" if place == 0 else f"{place} before it"
    if status == "in_progress":
        step, steps = job.get("step"), job.get("steps")
        words = f"Step {step} of {steps}" if step and steps else "Starting"
        return f"{words}, attempt {job['attempt']}" if (job.get("attempt") or 1) > 1 else words
    return status.capitalize()


def engines_sentence(engines: list[dict[str, Any]]) -> str | None:
    """Why nothing is made at present; None when an engine serves, or nothing is known."""
    if not engines or any(engine.get("serving") for engine in engines):
        return None
    engine = min(engines, key=lambda each: each.get("state") in ("failed", "stopped"))
    state = str(engine.get("state"))
    detail = f": {str(engine['detail']).rstrip('.')}" if engine.get("detail") else ""
    for_seconds = f" (for {duration(engine['phase_seconds'])})" if engine.get("phase_seconds") else ""
    return f"The engine {STATES.get(state, 'is ' + state)}{for_seconds}{detail}. The job waits and is kept."


def duration(seconds: float) -> str:
    """Seconds in words."""
    whole = max(1, round(seconds))
    if whole < 60:
        return f"{whole} s"
    return f"{round(whole / 60)} min" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"


def _bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
        console=console,
        transient=True,
    )
