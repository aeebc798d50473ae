"""Engines: how each is, for people who run the service."""

from __future__ import annotations

from fastapi import APIRouter

from framekeeper.gateway.auth import ReaderOf
from framekeeper.gateway.schemas import EngineList, EngineObject
from framekeeper.gateway.state import DatabaseOf, SettingsOf
from framekeeper.jobs.engines import all_engines

router = APIRouter(prefix="/v1/engines", tags=["engines"])


@router.get("")
async def list_engines(_caller: ReaderOf, database: DatabaseOf, settings: SettingsOf) -> EngineList:
    """Every engine that was registered, with its state and what it admits."""
    engines = await all_engines(database)
    return EngineList(data=[EngineObject.of(engine, settings.stale_seconds) for engine in engines])
