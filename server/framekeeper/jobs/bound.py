"""Whether one more job may wait. Pure: the line in, an error with an honest Retry-After out."""

from __future__ import annotations

from dataclasses import dataclass

from framekeeper.errors import QueueFull
from framekeeper.jobs.line import ModelLine

#: Where no time can be estimated: often enough to get in soon, seldom enough to be no burden.
UNKNOWN_SECONDS = 15.0
LEAST_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """Most jobs that wait for a model, and the longest that a job may have to wait; 0 seconds: any."""

    jobs: int
    seconds: float


def require_room(line: ModelLine, bound: Bound, *, jobs: int = 1, unseen: int = 0) -> None:
    """Raise QueueFull where `jobs` more would make the line of their model longer than it may be.

    Its `retry_after` is when there will be room, by the estimates. The line is one look at the database;
    `unseen` jobs were accepted since.
    """
    waiting = line.waiting + unseen
    over = waiting + jobs - bound.jobs
    if over > 0:
        starts = line.starts[over - 1] if over <= len(line.starts) else None
        raise QueueFull(
            f"{waiting} jobs wait for {line.model}, and at most {bound.jobs} may: {_again(starts)}.",
            retry_after=_seconds(starts),
        )
    if bound.seconds and line.wait_seconds is not None and line.wait_seconds > bound.seconds:
        excess = line.wait_seconds - bound.seconds
        raise QueueFull(
            f"A job for {line.model} would wait about {line.wait_seconds:.0f} s for an engine, and at most "
            f"{bound.seconds:g} s are accepted: {_again(excess)}.",
            retry_after=_seconds(excess),
        )


def _seconds(estimated: float | None) -> float:
    return UNKNOWN_SECONDS if estimated is None else max(LEAST_SECONDS, estimated)


def _again(estimated: float | None) -> str:
    if estimated is None:
        return "when there will be room is not known, as no engine serves or nothing was measured yet"
    return f"there will be room in about {max(LEAST_SECONDS, estimated):.1f} s"
