"""A served gateway on a fresh database, with one ready engine where a test asks for it."""

from __future__ import annotations

import asyncio
import io
import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Protocol
from uuid import uuid4

import httpx
import psycopg
import pytest
import structlog

from framekeeper import logs
from framekeeper.database.pool import Database
from framekeeper.jobs import engines
from framekeeper.jobs.engines import EngineState
from framekeeper.settings import Settings
from gateway.serving import served
from jobs.records import ADMITS, DEFAULTS


class Cluster(Protocol):
    """What the fixture `postgres_cluster` is."""

    url: str

    def url_of(self, database: str) -> str: ...


@pytest.fixture(scope="session", autouse=True)
def log_lines() -> Iterator[io.StringIO]:
    """The gateway's log as a container writes it."""
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    lines = io.StringIO()
    logs.configure(Settings(log_format="json"), "gateway", lines)
    yield lines
    root.handlers, root.level = handlers, level
    structlog.reset_defaults()


@pytest.fixture(scope="session")
def shared_settings(
    postgres_cluster: Cluster, postgres_template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Settings]:
    """Settings of a database with a ready engine, for all tests that do not mind the jobs of others."""
    name = f"shared_{uuid4().hex}"
    with psycopg.connect(postgres_cluster.url, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}" TEMPLATE "{postgres_template}" STRATEGY FILE_COPY')
        url = postgres_cluster.url_of(name)
        asyncio.run(_prepare(url))
        yield Settings(
            database_url=url, var=tmp_path_factory.mktemp("var"), min_free_bytes=0, stale_seconds=900
        )
        connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


@pytest.fixture(scope="session")
def shared_http(shared_settings: Settings) -> Iterator[httpx.Client]:
    """A client of a server that many tests share; starting one takes longer than most of them."""
    with served(shared_settings) as base, httpx.Client(base_url=base, timeout=20) as client:
        yield client


async def _prepare(url: str) -> None:
    database = Database(url, size=1)
    await database.open()
    await register(database)
    await report(database, EngineState.READY)
    await database.close()


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
async def web(url: str) -> AsyncIterator[httpx.AsyncClient]:
    """As `http`, for tests that move jobs meanwhile."""
    async with httpx.AsyncClient(base_url=url, timeout=20) as client:
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
