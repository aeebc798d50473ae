"""Going the route: every step of the plan until one passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from framekeeper.doctor.triage.attempt import attempt
from framekeeper.doctor.triage.outcome import Outcome
from framekeeper.doctor.triage.plan import Step


async def follow(
    steps: Sequence[Step],
    python: Path,
    work: Path,
    *,
    repeat: int = 1,
    on_start: Callable[[Step], None] = lambda _: None,
    on_outcome: Callable[[Outcome], None] = lambda _: None,
) -> list[Outcome]:
    """Try the steps in order until one passes `repeat` times; the rest is not tried.

    Raises OSError when the engine's Python cannot be started.
    """
    outcomes: list[Outcome] = []
    passed = False
    for step in steps:
        if step.skipped is not None:
            outcome = Outcome(step=step, state="skipped")
        elif passed:
            outcome = Outcome(step=step, state="not tried")
        else:
            on_start(step)
            outcome = await _tried(step, python, work, repeat)
            passed = outcome.state == "passed"
        outcomes.append(outcome)
        on_outcome(outcome)
    return outcomes


async def _tried(step: Step, python: Path, work: Path, repeat: int) -> Outcome:
    """A step has passed when it has passed so many times in a row: some faults come and go."""
    outcome = await attempt(step, python, work)
    for _ in range(1, repeat if step.how != "weights" else 1):
        if outcome.state != "passed":
            break
        outcome = await attempt(step, python, work)
    return outcome
