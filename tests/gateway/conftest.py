"""A served gateway on a fresh database, with one ready engine where a test asks for it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from framekeeper.database.pool import Database
from framekeeper.jobs import engines
from framekeeper.jobs.engines import EngineState
from framekeeper.settings import Settings
from gateway.serving import served
from jobs.records import ADMITS, DEFAULTS


@pytest.fixture
def settings(postgres_url: str, tmp_path: Path) -> Settings:
    return Settings(database_url=postgres_url, var=tmp_path / "var", min_free_bytes=0)


@pytest.fixture
def url(settings: Settings) -> Iterator[str]:
    with served(settings) as base:
        yield base


@pytest.fixture
def http(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, timeout=20) as client:
        yield client


@pytest.fixture
async def database(postgres_url: str) -> AsyncIterator[Database]:
    database = Database(postgres_url, size=2)
    await database.open()
    yield database
    await database.close()


async def register(database: Database, name: str = "host/0", model: str = "tiny") -> None:
    """Enter an engine that makes what records.ADMITS says."""
    await engines.register(
        database, engine_id=name, host="host", run_id="run", model=model, profile="cpu-tiny", runtime="cpu",
        admits=ADMITS, defaults=DEFAULTS,
    )  # fmt: skip


async def report(
    database: Database, state: EngineState, name: str = "host/0", phase: str | None = None
) -> None:
    """Let an engine report its state."""
    await engines.report(
        database, engine_id=name, run_id="run", state=state, phase=phase, detail=None, restarts=0, facts=None
    )


@pytest.fixture
async def ready_engine(database: Database) -> None:
    await register(database)
    await report(database, EngineState.READY)
