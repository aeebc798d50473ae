"""What waits and runs in the whole database, counted for the metrics."""

from __future__ import annotations

from dataclasses import dataclass

from framekeeper.database.pool import Database
from framekeeper.jobs import line


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """The waiting jobs of one model and shape class; the age in seconds since the oldest was accepted."""

    model: str
    shape_class: str
    depth: int
    oldest_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Census:
    """One look into the database. `queue_seconds` (where it is known) and `in_progress` are by model."""

    queues: tuple[Queue, ...]
    in_progress: dict[str, int]
    queue_seconds: dict[str, float]
    #: Seconds since an engine last served a model that has engines or jobs; 0 while one does.
    unserved_seconds: dict[str, float]
    media_bytes: int
    webhooks_waiting: int


_JOBS = """
    SELECT model, queue, state, count(*) AS jobs,
        extract(epoch FROM clock_timestamp() - min(created_at))::float8 AS oldest_seconds
    FROM videos WHERE state IN ('queued', 'in_progress') AND deleted_at IS NULL
    GROUP BY model, queue, state
"""
_MODELS = "SELECT DISTINCT model FROM engines"
_TOTALS = """
    SELECT (SELECT coalesce(sum(bytes), 0)::bigint FROM videos
            WHERE state = 'completed' AND deleted_at IS NULL) AS media_bytes,
        (SELECT count(*) FROM webhook_deliveries
         WHERE delivered_at IS NULL AND given_up_at IS NULL) AS webhooks_waiting
"""


async def take(database: Database, *, stale_seconds: float) -> Census:
    """Count. Every model that has an engine is there, also without a job. Raises DatabaseUnavailable."""
    jobs = await database.fetch_all(_JOBS)
    models = await database.fetch_all(_MODELS)
    totals = await database.fetch_one(_TOTALS)
    assert totals is not None
    in_progress: dict[str, int] = dict.fromkeys((row["model"] for row in models), 0)
    seen = await line.look(database, stale_seconds=stale_seconds)
    lines = seen.models
    queues = []
    for row in jobs:
        model = row["model"]
        if row["state"] == "in_progress":
            in_progress[model] = in_progress.get(model, 0) + row["jobs"]
        else:
            queues.append(
                Queue(
                    model=model,
                    shape_class=row["queue"].rpartition("/")[2],
                    depth=row["jobs"],
                    oldest_seconds=row["oldest_seconds"],
                )
            )
    return Census(
        queues=tuple(queues),
        in_progress=in_progress,
        queue_seconds={
            model: each.wait_seconds for model, each in lines.items() if each.wait_seconds is not None
        },
        unserved_seconds={
            model: seen.served_seconds.get(model, 0.0) if model in seen.unserved else 0.0 for model in lines
        },
        media_bytes=totals["media_bytes"],
        webhooks_waiting=totals["webhooks_waiting"],
    )
