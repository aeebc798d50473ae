"""The engines as the database knows them: what they can do and how they are.

The supervisors write, the gateways read: that is all they know of each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from psycopg.types.json import Jsonb

from framekeeper.database.pool import Database


class EngineState(StrEnum):
    """How an engine is."""

    #: Its process is being started.
    STARTING = "starting"
    #: Libraries and weights are being loaded.
    LOADING = "loading"
    #: The warm-up is running.
    WARMING = "warming"
    #: Warm, and waiting for a job.
    READY = "ready"
    #: Warm, and working on a job.
    BUSY = "busy"
    #: Warm, but what it would make could not be stored; goes on by itself once it can.
    BLOCKED = "blocked"
    #: Its process ended; the next one is about to be started.
    RESTARTING = "restarting"
    #: Serving on a fallback rung.
    DEGRADED = "degraded"
    #: Not serving, and not trying without help.
    FAILED = "failed"
    #: Its supervisor was stopped in good order.
    STOPPED = "stopped"

    @property
    def serving(self) -> bool:
        """Whether it takes jobs."""
        return self in (EngineState.READY, EngineState.BUSY, EngineState.DEGRADED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One row of `engines`. `admits` and `defaults` are those of its profile (see profiles/schema.py)."""

    id: str
    host: str
    run_id: str
    model: str
    profile: str
    runtime: str
    state: EngineState
    phase: str | None
    detail: str | None
    admits: dict[str, Any]
    defaults: dict[str, Any]
    restarts: int
    facts: dict[str, Any] | None
    started_at: datetime
    phase_since: datetime
    ready_at: datetime | None
    heartbeat_at: datetime
    age_seconds: float
    phase_seconds: float

    def alive(self, stale_seconds: float) -> bool:
        """Whether its supervisor has been heard of lately."""
        return self.state is not EngineState.STOPPED and self.age_seconds < stale_seconds

    @property
    def reduced(self) -> str | None:
        """Why it takes smaller jobs than its profile says, and until when; None when it does not."""
        reduced = self.admits.get("reduced")
        if not reduced:
            return None
        until = datetime.fromtimestamp(reduced["until"], UTC).strftime("%H:%M UTC")
        return f"{reduced['reason']} This limit is tried again at {until}."

    @classmethod
    def from_row(cls, row: dict[str, Any]) -> Engine:
        """Build from a row of `SELECT {COLUMNS}`."""
        return cls(**{**row, "state": EngineState(row["state"])})


#: Seconds since the heartbeat, by the database's clock, in a query that reads `engines` once. A clock that
#: was put back leaves heartbeats in the future: whoever lives replaces its own at once, and that of an engine
#: that is gone must not look fresh until then.
AGE = "abs(extract(epoch FROM clock_timestamp() - heartbeat_at))::float8"
_STORED = [name for name in Engine.__dataclass_fields__ if name not in ("age_seconds", "phase_seconds")]
COLUMNS = ", ".join(_STORED) + (
    f", {AGE} AS age_seconds"
    ", greatest(0, extract(epoch FROM clock_timestamp() - phase_since))::float8 AS phase_seconds"
)

ALL = f"SELECT {COLUMNS} FROM engines ORDER BY id"


async def register(
    database: Database,
    *,
    engine_id: str,
    host: str,
    run_id: str,
    model: str,
    profile: str,
    runtime: str,
    admits: dict[str, Any],
    defaults: dict[str, Any],
) -> None:
    """Enter an engine, or enter it anew after its supervisor was restarted."""
    async with database.transaction() as connection:
        await connection.execute(
            """
            INSERT INTO engines (id, host, run_id, model, profile, runtime, state, admits, defaults)
            VALUES (%(id)s, %(host)s, %(run)s, %(model)s, %(profile)s, %(runtime)s, 'starting',
                %(admits)s, %(defaults)s)
            ON CONFLICT (id) DO UPDATE SET (host, run_id, model, profile, runtime, state, admits, defaults,
                    phase, detail, restarts, facts, started_at, phase_since, ready_at, heartbeat_at)
                = ROW (excluded.host, excluded.run_id, excluded.model, excluded.profile, excluded.runtime,
                    excluded.state, excluded.admits, excluded.defaults, NULL, NULL, 0, NULL,
                    clock_timestamp(), clock_timestamp(), NULL, clock_timestamp())
            """,
            {
                "id": engine_id,
                "host": host,
                "run": run_id,
                "model": model,
                "profile": profile,
                "runtime": runtime,
                "admits": Jsonb(admits),
                "defaults": Jsonb(defaults),
            },
        )


async def report(
    database: Database,
    *,
    engine_id: str,
    run_id: str,
    state: EngineState,
    phase: str | None,
    detail: str | None,
    restarts: int,
    facts: dict[str, Any] | None,
    admits: dict[str, Any] | None = None,
) -> bool:
    """Store how an engine is, and what it admits now; also its heartbeat.

    False when another run has taken the engine's name.
    """
    row = await database.fetch_one(
        """
        UPDATE engines SET
            phase_since = CASE WHEN (state, phase) IS DISTINCT FROM (%(state)s, %(phase)s)
                THEN clock_timestamp() ELSE phase_since END,
            ready_at = CASE WHEN %(serving)s AND state NOT IN ('ready', 'busy', 'degraded')
                THEN clock_timestamp() WHEN %(serving)s THEN ready_at END,
            state = %(state)s, phase = %(phase)s, detail = %(detail)s, restarts = %(restarts)s,
            admits = coalesce(%(admits)s, admits), facts = %(facts)s, heartbeat_at = clock_timestamp()
        WHERE id = %(id)s AND run_id = %(run)s RETURNING id
        """,
        {
            "id": engine_id,
            "run": run_id,
            "state": state.value,
            "serving": state.serving,
            "phase": phase,
            "detail": detail,
            "restarts": restarts,
            "admits": Jsonb(admits) if admits is not None else None,
            "facts": Jsonb(facts) if facts is not None else None,
        },
    )
    return row is not None


async def all_engines(database: Database) -> list[Engine]:
    """Every engine that was ever registered and not forgotten, by name."""
    rows = await database.fetch_all(ALL)
    return [Engine.from_row(row) for row in rows]
