"""What waits and runs in the whole database, counted for the metrics."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from framekeeper.database.pool import Database


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """The waiting jobs of one model and shape class; the age in seconds since the oldest was accepted."""

    model: str
    shape_class: str
    depth: int
    oldest_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Census:
    """One look into the database. `queue_seconds` and `in_progress` are by model."""

    queues: tuple[Queue, ...]
    in_progress: dict[str, int]
    queue_seconds: dict[str, float]
    media_bytes: int
    webhooks_waiting: int


_JOBS = """
    SELECT model, queue, state, count(*) AS jobs,
        extract(epoch FROM clock_timestamp() - min(created_at))::float8 AS oldest_seconds,
        coalesce(sum(estimated_seconds), 0)::float8 AS seconds,
        count(*) FILTER (WHERE estimated_seconds IS NULL) AS without_estimate
    FROM videos WHERE state IN ('queued', 'in_progress') AND deleted_at IS NULL
    GROUP BY model, queue, state
"""
_ENGINES = """
    SELECT model, count(*) FILTER (WHERE state IN ('ready', 'busy', 'degraded')
        AND heartbeat_at > clock_timestamp() - make_interval(secs => %(stale)s)) AS serving
    FROM engines GROUP BY model
"""
#: For jobs whose seconds nobody estimated: what the newest ones of their model took.
_USUAL = """
    SELECT model, avg(seconds)::float8 AS seconds FROM
        (SELECT model, seconds, row_number() OVER (PARTITION BY model ORDER BY at DESC) AS newest
         FROM measured_seconds) numbered
    WHERE newest <= 20 GROUP BY model
"""
_TOTALS = """
    SELECT (SELECT coalesce(sum(bytes), 0)::bigint FROM videos
            WHERE state = 'completed' AND deleted_at IS NULL) AS media_bytes,
        (SELECT count(*) FROM webhook_deliveries
         WHERE delivered_at IS NULL AND given_up_at IS NULL) AS webhooks_waiting
"""


async def take(database: Database, *, stale_seconds: float) -> Census:
    """Count. Every model that has an engine is there, also without a job. Raises DatabaseUnavailable."""
    jobs = await database.fetch_all(_JOBS)
    engines = await database.fetch_all(_ENGINES, {"stale": stale_seconds})
    usual = {row["model"]: row["seconds"] for row in await database.fetch_all(_USUAL)}
    totals = await database.fetch_one(_TOTALS)
    assert totals is not None
    serving = {row["model"]: row["serving"] for row in engines}
    in_progress: dict[str, int] = dict.fromkeys(serving, 0)
    work: dict[str, float] = defaultdict(float, dict.fromkeys(serving, 0.0))
    queues = []
    for row in jobs:
        model = row["model"]
        work[model] += row["seconds"] + row["without_estimate"] * usual.get(model, 0.0)
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
        queue_seconds={model: seconds / max(1, serving.get(model, 0)) for model, seconds in work.items()},
        media_bytes=totals["media_bytes"],
        webhooks_waiting=totals["webhooks_waiting"],
    )
