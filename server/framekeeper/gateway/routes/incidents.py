"""Incidents: every unplanned end of an engine, with its cause and what was done."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from framekeeper.gateway.auth import AdminOf
from framekeeper.gateway.state import DatabaseOf
from framekeeper.jobs import incidents
from framekeeper.jobs.incidents import IncidentRow

router = APIRouter(prefix="/v1/incidents", tags=["incidents"])


class IncidentObject(BaseModel):
    """One unplanned end. The excerpt of the engine's log holds no prompt."""

    id: str
    object: str = "incident"
    at: float = Field(description="Unix seconds.")
    engine: str
    profile: str
    rung: int = Field(description="Fallback the engine ran on; 0 is the profile itself.")
    phase: str
    video: str | None
    attempt: int | None
    signature: str = Field(description="Name of the cause; `unknown` where none of the known ones fits.")
    cause: str
    first_error: str | None
    excerpt: list[str]
    exit: str
    memory: dict[str, int | None]
    decision: str
    decision_reason: str
    ready_again_seconds: float | None = Field(description="Until the next engine had proved itself.")

    @classmethod
    def of(cls, row: IncidentRow) -> IncidentObject:
        """From the database's row."""
        record: dict[str, Any] = row.record
        ended = record["exit_reason"] or (
            f"signal {record['exit_signal']}" if record["exit_signal"] else f"exit code {record['exit_code']}"
        )
        return cls(
            id=row.id,
            at=row.at.timestamp(),
            engine=row.engine_id,
            profile=row.profile,
            rung=row.rung,
            phase=row.phase,
            video=row.video_id,
            attempt=row.attempt,
            signature=row.signature,
            cause=record["cause"],
            first_error=record["line"],
            excerpt=record["excerpt"],
            exit=ended,
            memory=record["memory"],
            decision=record["action"],
            decision_reason=record["reason"],
            ready_again_seconds=row.ready_again_seconds,
        )


class IncidentList(BaseModel):
    """A page of incidents; `last_id` is `after` of the next page."""

    object: str = "list"
    data: list[IncidentObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


#: PostgreSQL has no text with a NUL in it.
PlainText = Annotated[str, Query(min_length=1, max_length=200, pattern=r"^[^\x00]+$")]


@router.get("")
async def list_incidents(
    _caller: AdminOf,
    database: DatabaseOf,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    after: PlainText | None = None,
    engine: PlainText | None = None,
) -> IncidentList:
    """Incidents, the newest first; those of one engine with `engine`."""
    rows, more = await incidents.page(database, limit=limit, after=after, engine_id=engine)
    return IncidentList(
        data=[IncidentObject.of(row) for row in rows],
        first_id=rows[0].id if rows else None,
        last_id=rows[-1].id if rows else None,
        has_more=more,
    )
