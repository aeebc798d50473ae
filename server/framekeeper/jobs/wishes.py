"""What a client may wish beside the video itself: how urgent it is, until when, and who is told."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from framekeeper.jobs.fields import Fields, shown
from framekeeper.jobs.video import Priority

#: Longest time until a deadline, in seconds.
MAX_DEADLINE = 30 * 86400
_DEADLINES = f"set seconds from now, above 0 up to {MAX_DEADLINE}, or a moment such as 2026-01-31T12:00:00Z"
MAX_URL = 2000
FIELDS = ("priority", "deadline", "webhook_url")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """See `Video` for the fields; None where nothing was wished."""

    priority: Priority | None = None
    deadline_at: datetime | None = None
    webhook_url: str | None = None


def read_wishes(read: Fields, now: datetime) -> Wishes:
    """Read them; faults are noted in `read`."""
    return Wishes(
        priority=_priority(read),
        deadline_at=_deadline(read, now),
        webhook_url=read.text("webhook_url", longest=MAX_URL),
    )


def _priority(read: Fields) -> Priority | None:
    value = read.values.get("priority")
    names = {each.name.lower(): each for each in Priority}
    if value is None:
        return None
    if not isinstance(value, str) or value not in names:
        read.refuse("priority", f"priority={shown(value)} is not known: set {' or '.join(names)}.")
        return None
    return names[value]


def _deadline(read: Fields, now: datetime) -> datetime | None:
    """Seconds from now, or a moment as in RFC 3339."""
    value = read.values.get("deadline")
    if isinstance(value, str) and "T" in value.upper():
        try:
            moment = datetime.fromisoformat(value.upper().replace("Z", "+00:00"))
        except ValueError:
            moment = None
        if moment is None or moment.tzinfo is None:
            read.refuse(
                "deadline",
                f"deadline={shown(value)} is not a moment with its offset: {_DEADLINES}.",
            )
            return None
        left = (moment - now).total_seconds()
        if left <= 0:
            read.refuse("deadline", f"deadline={shown(value)} is in the past: set a later moment.")
            return None
        if left > MAX_DEADLINE:
            days = MAX_DEADLINE // 86400
            read.refuse(
                "deadline", f"deadline={shown(value)} is more than {days} days away: set an earlier one."
            )
            return None
        return moment.astimezone(UTC)
    seconds = read.number("deadline", 0, MAX_DEADLINE, above=True, advice=_DEADLINES)
    return None if seconds is None else now + timedelta(seconds=seconds)
