"""Health: whether this process lives, whether a video could be made now, and how far the engines are."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from framekeeper.database.pool import Database
from framekeeper.errors import DatabaseUnavailable, FramekeeperError
from framekeeper.gateway.errors import translated
from framekeeper.gateway.schemas import EngineObject
from framekeeper.gateway.state import DatabaseOf, MediaOf, SettingsOf
from framekeeper.jobs.engines import Engine, EngineState, all_engines
from framekeeper.media.condition import Condition

router = APIRouter(prefix="/health", tags=["operation"])

#: Less than a probe's patience, so that it gets to read the reason.
DATABASE_SECONDS = 3.0


@router.get("/live")
async def live() -> dict[str, str]:
    """200 as long as this process answers."""
    return {"status": "alive"}


@router.get("/ready")
async def ready(database: DatabaseOf, settings: SettingsOf, media: MediaOf) -> JSONResponse:
    """200 when the database answers, an engine serves (its warm-up made a real video), and a video could be
    stored."""
    engines, reasons = await _reasons(database, settings.stale_seconds, media)
    serving = [engine.id for engine in engines if engine.serving]
    return _answer(reasons, {"serving": serving})


@router.get("/startup")
async def startup(database: DatabaseOf, settings: SettingsOf, media: MediaOf) -> JSONResponse:
    """As `ready`, with the phase of every engine and its seconds so far."""
    engines, reasons = await _reasons(database, settings.stale_seconds, media)
    shown = {"id", "state", "phase", "detail", "phase_seconds", "seconds", "silent_seconds", "restarts"}
    return _answer(
        reasons, {"engines": [engine.model_dump(mode="json", include=shown) for engine in engines]}
    )


async def _reasons(
    database: Database, stale_seconds: float, media: Condition
) -> tuple[list[EngineObject], list[str]]:
    """The engines, and why no video could be made now; no reasons when one could."""
    fault, (engines, reasons) = await asyncio.gather(
        media.fault(DATABASE_SECONDS), _of_engines(database, stale_seconds)
    )
    return engines, reasons if fault is None else [*reasons, fault]


async def _of_engines(database: Database, stale_seconds: float) -> tuple[list[EngineObject], list[str]]:
    reading = asyncio.ensure_future(all_engines(database))
    reading.add_done_callback(_retrieve)
    # Not asyncio.timeout: a database that is frozen holds up the cancellation as well.
    await asyncio.wait({reading}, timeout=DATABASE_SECONDS)
    if not reading.done():
        reading.cancel()
        return [], [DatabaseUnavailable().message]
    try:
        records = reading.result()
    except Exception as error:
        known: FramekeeperError | None = translated(error)
        if known is None:
            raise
        return [], [known.message]
    engines = [EngineObject.of(record, stale_seconds) for record in records]
    if not engines:
        return engines, ["No engine has registered yet: start a supervisor."]
    if any(engine.serving for engine in engines):
        return engines, []
    return engines, [_why_not(engine, stale_seconds) for engine in engines]


def _retrieve(reading: asyncio.Future[list[Engine]]) -> None:
    # Of one that nobody waits for any more, asyncio would log the exception.
    if not reading.cancelled():
        reading.exception()


def _why_not(engine: EngineObject, stale_seconds: float) -> str:
    if engine.silent_seconds >= stale_seconds:
        why = f": {engine.detail}" if engine.state == EngineState.FAILED and engine.detail else "."
        return f"{engine.id} has been silent for {engine.silent_seconds:.0f} s (last {engine.state}){why}"
    phase = f", {engine.phase}" if engine.phase else ""
    detail = f": {engine.detail}" if engine.detail else ""
    return f"{engine.id} is {engine.state}{phase} for {engine.phase_seconds:.0f} s{detail}."


def _answer(reasons: list[str], facts: dict[str, Any]) -> JSONResponse:
    if not reasons:
        return JSONResponse({"status": "ready", **facts})
    error = {"message": " ".join(reasons), "type": "server_error", "param": None, "code": "not_ready"}
    return JSONResponse(
        {"status": "not ready", "reasons": reasons, **facts, "error": error},
        status_code=HTTPStatus.SERVICE_UNAVAILABLE,
        headers={"Retry-After": "2"},
    )
