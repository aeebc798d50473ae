"""A video job as the database holds it: one frozen record, one closed set of states."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import IntEnum, StrEnum
from typing import Any

import msgspec


class VideoState(StrEnum):
    """Where a job is. All but the first two are final; a completed one may still expire."""

    #: Accepted; waits for an engine, for the first time or again after an interruption.
    QUEUED = "queued"
    #: An engine works on attempt `attempt`.
    IN_PROGRESS = "in_progress"
    #: The files exist and are published.
    COMPLETED = "completed"
    #: The owner is told why in `error_code` and `error_message`.
    FAILED = "failed"
    #: The owner asked for it.
    CANCELLED = "cancelled"
    #: It was completed, and its files were removed by retention.
    EXPIRED = "expired"

    @property
    def final(self) -> bool:
        """Whether the job can change no more."""
        return self not in (VideoState.QUEUED, VideoState.IN_PROGRESS)


class Priority(IntEnum):
    """Which of the waiting jobs goes first; the queue's own order, the higher the earlier."""

    LOW = -1
    NORMAL = 0
    HIGH = 1


class VideoRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for, with every default resolved at submission, so that a later profile changes nothing.

    Sizes in pixels, `num_frames` is 4k+1, `fps` frames a second, the names are diffusers'
    (https://huggingface.co/docs/diffusers/api/pipelines/wan). `seed` is always set: a job that runs again
    after an interruption makes the same video.
    """

    prompt: str
    negative_prompt: str | None
    width: int
    height: int
    num_frames: int
    fps: int
    num_inference_steps: int
    guidance_scale: float
    guidance_scale_2: float | None
    boundary_ratio: float | None
    flow_shift: float | None
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Video:
    """One row of `videos`.

    `attempt` numbers the starts and only grows: it fences writes and names files. `tries` counts those that
    use up the limit: a start that we ended ourselves, at a shutdown, is given back. `engine_deaths` counts
    the engines that ended while they worked on it, `incident_id` names the last such end.

    `owner` is the id of the API key that submitted it, None where no keys are used. `version` counts the
    row's changes and is the id of its events. `estimated_seconds` is what the engine was expected to need,
    when the job was accepted. A queued job whose `queue_job_id` is None waits in its row until its owner has
    a place in the queue.
    """

    id: str
    model: str
    queue: str
    request: VideoRequest
    state: VideoState
    phase: str | None
    step: int
    steps: int
    attempt: int
    tries: int
    engine_deaths: int
    engine_id: str | None
    run_id: str | None
    queue_job_id: int | None
    created_at: datetime
    started_at: datetime | None
    completed_at: datetime | None
    cancel_requested_at: datetime | None
    deleted_at: datetime | None
    error_code: str | None
    error_message: str | None
    incident_id: str | None
    video_file: str | None
    thumbnail_file: str | None
    bytes: int | None
    facts: dict[str, Any] | None
    owner: str | None
    priority: Priority
    deadline_at: datetime | None
    batch_id: str | None
    request_id: str | None
    input_file: str | None
    webhook_url: str | None
    expires_at: datetime | None
    estimated_seconds: float | None
    version: int

    @property
    def progress(self) -> int:
        """Percent of denoising steps finished, 0..99 until the file is published, then 100."""
        if self.state in (VideoState.COMPLETED, VideoState.EXPIRED):
            return 100
        return min(99, 100 * self.step // self.steps) if self.steps else 0

    def overdue(self, now: datetime) -> bool:
        """Whether its deadline is over."""
        return self.deadline_at is not None and now > self.deadline_at

    @classmethod
    def from_row(cls, row: dict[str, Any]) -> Video:
        """Build from a row of `SELECT {COLUMNS}`."""
        return cls(
            **{
                **row,
                "state": VideoState(row["state"]),
                "request": msgspec.convert(row["request"], VideoRequest),
                "priority": Priority(row["priority"]),
            }
        )


#: The columns of `Video`, for SELECT and RETURNING.
COLUMNS = ", ".join(Video.__dataclass_fields__)


#: SQL for a fresh id of a job accepted at `moment`: microseconds in 14 hex digits, and 18 random ones. Thus a
#: listing can go on behind a job that was deleted meanwhile.
NEW_ID = """'video_' || lpad(to_hex((extract(epoch FROM moment) * 1000000)::bigint), 14, '0')
    || substr(replace(gen_random_uuid()::text, '-', ''), 15)"""
_ID = re.compile(r"video_([0-9a-f]{14})[0-9a-f]{18}", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: Before there was any job; with one of these the digits are no time of ours.
_FIRST = datetime(2025, 1, 1, tzinfo=UTC)


def accepted_at(video_id: str) -> datetime | None:
    """When the job of this id was accepted, to the microsecond; None for what is no id of ours."""
    match = _ID.fullmatch(video_id)
    if match is None:
        return None
    age = timedelta(microseconds=int(match[1], 16))
    return _EPOCH + age if _FIRST - _EPOCH < age < datetime.now(UTC) - _EPOCH + timedelta(days=1) else None
