"""A database for the tests of jobs."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from framekeeper.database.pool import Database


@pytest.fixture
async def database(postgres_url: str) -> AsyncIterator[Database]:
    database = Database(postgres_url, size=4)
    await database.open()
    yield database
    await database.close()
