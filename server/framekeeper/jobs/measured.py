"""How many seconds jobs took an engine, as far as it was measured."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from framekeeper.database.pool import Database
from framekeeper.jobs.video import Video

#: So many newest runs of a model count: a machine changes, and so do drivers and profiles.
NEWEST = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What jobs of one shape and number of steps took on one profile: the median of the newest runs."""

    profile: str
    width: int
    height: int
    num_frames: int
    steps: int
    seconds: float
    runs: int


async def note(database: Database, video: Video, *, profile: str, rung: int, seconds: float) -> None:
    """Store what a finished job took: from its start until the engine was free for the next one.

    Raises DatabaseUnavailable.
    """
    request = video.request
    await database.execute(
        """
        INSERT INTO measured_seconds (model, profile, rung, width, height, num_frames, steps, seconds)
        VALUES (%(model)s, %(profile)s, %(rung)s, %(width)s, %(height)s, %(frames)s, %(steps)s, %(seconds)s)
        """,
        {
            "model": video.model,
            "profile": profile,
            "rung": rung,
            "width": request.width,
            "height": request.height,
            "frames": request.num_frames,
            "steps": request.num_inference_steps,
            "seconds": seconds,
        },
    )


#: What was measured of each model: the newest runs of each shape on each profile's newest rung.
BY_MODEL = f"""
    SELECT model, profile, width, height, num_frames, steps, count(*) AS runs,
        percentile_cont(0.5) WITHIN GROUP (ORDER BY seconds) AS seconds
    FROM (
        SELECT newest.*, row_number() OVER (
            PARTITION BY newest.model, profile, width, height, num_frames, steps ORDER BY at DESC
        ) AS place
        FROM (SELECT DISTINCT model AS name FROM engines) served
        CROSS JOIN LATERAL (
            SELECT *, first_value(rung) OVER (PARTITION BY profile ORDER BY at DESC) AS present
            FROM (SELECT * FROM measured_seconds m WHERE m.model = served.name
                  ORDER BY at DESC LIMIT {NEWEST}) latest
        ) newest
        WHERE newest.rung = newest.present
    ) numbered
    WHERE place <= 9
    GROUP BY model, profile, width, height, num_frames, steps
"""


def grouped(rows: Iterable[dict[str, Any]]) -> dict[str, list[Measured]]:
    """The rows of BY_MODEL, by model."""
    found: dict[str, list[Measured]] = {}
    for row in rows:
        found.setdefault(row.pop("model"), []).append(Measured(**row))
    return found
