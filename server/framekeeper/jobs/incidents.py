"""Incidents and what engines learned from them, as the database keeps them.

Both outlive supervisor and container: an engine that had to step down starts on its rung again.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from psycopg.types.json import Jsonb

from framekeeper.database.pool import Database
from framekeeper.errors import InvalidRequest

#: What a list shows; `record` holds the rest.
COLUMNS = (
    "id, at, host, engine_id, profile, rung, phase, video_id, attempt, signature, record, ready_again_seconds"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentRow:
    """One unplanned end of an engine. `record` is the whole diagnosis and decision."""

    id: str
    at: datetime
    host: str
    engine_id: str
    profile: str
    rung: int
    phase: str
    video_id: str | None
    attempt: int | None
    signature: str
    record: dict[str, Any]
    ready_again_seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """How far an engine has stepped down. `admit_limit` is a smaller largest shape with its reason and end:
    {"size": "832x480", "num_frames": 49, "until": seconds since the epoch, "reason": "…"}.
    `reset_at` says when an operator last put it back to the top.
    """

    rung: int = 0
    rung_since: datetime | None = None
    admit_limit: dict[str, Any] | None = None
    reason: str | None = None
    reset_at: datetime | None = None


async def store(database: Database, row: IncidentRow) -> None:
    """Keep an incident; storing it twice changes nothing."""
    await database.fetch_one(
        """
        INSERT INTO incidents
            (id, at, host, engine_id, profile, rung, phase, video_id, attempt, signature, record)
        VALUES (%(id)s, %(at)s, %(host)s, %(engine)s, %(profile)s, %(rung)s, %(phase)s, %(video)s,
            %(attempt)s, %(signature)s, %(record)s)
        ON CONFLICT (id) DO NOTHING RETURNING id
        """,
        {
            "id": row.id,
            "at": row.at,
            "host": row.host,
            "engine": row.engine_id,
            "profile": row.profile,
            "rung": row.rung,
            "phase": row.phase,
            "video": row.video_id,
            "attempt": row.attempt,
            "signature": row.signature,
            "record": Jsonb(row.record),
        },
    )


async def ready_again(database: Database, incident_id: str, seconds: float) -> None:
    """Note how long it took from the end of the engine to the end of the next one's warm-up."""
    await database.fetch_one(
        "UPDATE incidents SET ready_again_seconds = %(seconds)s WHERE id = %(id)s RETURNING id",
        {"id": incident_id, "seconds": seconds},
    )


async def page(
    database: Database, *, limit: int, after: str | None = None, engine_id: str | None = None
) -> tuple[list[IncidentRow], bool]:
    """Incidents, the newest first, behind the one called `after`; and whether more follow.

    Raises InvalidRequest when there is no incident `after`.
    """
    behind = ""
    if after is not None:
        anchor = await database.fetch_one("SELECT 1 FROM incidents WHERE id = %(id)s", {"id": after})
        if anchor is None:
            raise InvalidRequest(f"after={after!r}: there is no incident with this id.", param="after")
        behind = "AND (at, id) < (SELECT at, id FROM incidents WHERE id = %(after)s)"
    rows = await database.fetch_all(
        f"""
        SELECT {COLUMNS} FROM incidents
        WHERE (%(engine)s::text IS NULL OR engine_id = %(engine)s) {behind}
        ORDER BY at DESC, id DESC LIMIT %(limit)s
        """,
        {"engine": engine_id, "after": after, "limit": limit + 1},
    )
    return [IncidentRow(**row) for row in rows[:limit]], len(rows) > limit


async def rung_of(database: Database, engine_id: str, profile: str) -> Rung | None:
    """Where an engine stands; None when it never stepped down."""
    row = await database.fetch_one(
        """
        SELECT rung, rung_since, admit_limit, reason, reset_at FROM engine_rungs
        WHERE engine_id = %(engine)s AND profile = %(profile)s
        """,
        {"engine": engine_id, "profile": profile},
    )
    return Rung(**row) if row else None


async def set_rung(database: Database, engine_id: str, profile: str, rung: Rung) -> None:
    """Keep where an engine stands; `rung_since` is renewed when the rung changes."""
    await database.fetch_one(
        """
        INSERT INTO engine_rungs (engine_id, profile, rung, admit_limit, reason)
        VALUES (%(engine)s, %(profile)s, %(rung)s, %(limit)s, %(reason)s)
        ON CONFLICT (engine_id, profile) DO UPDATE SET
            rung_since = CASE WHEN engine_rungs.rung = excluded.rung
                THEN engine_rungs.rung_since ELSE clock_timestamp() END,
            rung = excluded.rung, admit_limit = excluded.admit_limit, reason = excluded.reason
        RETURNING engine_id
        """,
        {
            "engine": engine_id,
            "profile": profile,
            "rung": rung.rung,
            "limit": Jsonb(rung.admit_limit) if rung.admit_limit else None,
            "reason": rung.reason,
        },
    )


async def past(database: Database, engine_id: str, profile: str, *, limit: int = 50) -> list[dict[str, Any]]:
    """The records of an engine's latest incidents under a profile since its last reset, the oldest first."""
    rows = await database.fetch_all(
        """
        SELECT record FROM incidents WHERE engine_id = %(engine)s AND profile = %(profile)s
            AND at > coalesce((SELECT reset_at FROM engine_rungs
                WHERE engine_id = %(engine)s AND profile = %(profile)s), '-infinity')
        ORDER BY at DESC, id DESC LIMIT %(limit)s
        """,
        {"engine": engine_id, "profile": profile, "limit": limit},
    )
    return [row["record"] for row in reversed(rows)]


async def reset_rung(database: Database, engine_id: str) -> bool:
    """An operator's word: back to the top with a clean slate, for every profile of the engine.

    False when it is there already.
    """
    row = await database.fetch_one(
        """
        UPDATE engine_rungs
        SET rung = 0, rung_since = clock_timestamp(), admit_limit = NULL, reason = NULL,
            reset_at = clock_timestamp()
        WHERE engine_id = %(engine)s AND (rung > 0 OR admit_limit IS NOT NULL OR reason IS NOT NULL)
        RETURNING engine_id
        """,
        {"engine": engine_id},
    )
    return row is not None
