"""The unplanned end of an engine: what is known at the moment, and what became of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

from framekeeper.engine.protocol import Failed
from framekeeper.jobs.video import Video

Deadline = Literal["load", "warm_up", "step", "decode", "job"]


@dataclass(frozen=True, kw_only=True)
class End:
    """What was going on. `deadline` is the one that was missed, `failure` the worker's last word, if any."""

    phase: str
    deadline: Deadline | None = None
    failure: Failed | None = None
    video: Video | None = None


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What an end means for the job that was running.

    `sentence` is for its owner and names the incident. `retry` says that another try makes sense,
    `counts` that this one is used up, `engine_died` that the job may have been the reason, and
    `client_error` that the request was wrong.
    """

    incident_id: str
    sentence: str
    retry: bool
    counts: bool
    engine_died: bool
    client_error: bool = False


#: Looks into an end once the engine is gone; asking about the same engine again gives the same incident.
Examine = Callable[[End], Awaitable[Verdict]]
