"""One idempotency key, and two gateways that are processes of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from framekeeper.database.pool import Database
from system import System

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("ready_engine")]


@pytest.fixture
def urls(open_directory: Path, postgres_url: str) -> Iterator[list[str]]:
    """Two gateways on one database."""
    system = System(open_directory, postgres_url, min_free_bytes=0, stale_seconds=900)
    try:
        yield [system.start_gateway(), system.start_gateway()]
        system.stop_gateways()
    finally:
        system.abandon()


async def test_race_of_processes_makes_one_job_for_each_key(urls: list[str], database: Database) -> None:
    keys = [f"key-{number}" for number in range(8)]
    async with httpx.AsyncClient(timeout=30) as client:
        answers = await asyncio.gather(
            *(
                client.post(f"{base}/v1/videos", json={"prompt": key}, headers={"Idempotency-Key": key})
                for _ in range(5)
                for key in keys
                for base in urls
            )
        )
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.json()["id"] for answer in answers}) == len(keys)
    assert sum("idempotent-replayed" not in answer.headers for answer in answers) == len(keys)
    row = await database.fetch_one("SELECT count(*) AS jobs FROM videos")
    assert row is not None
    assert row["jobs"] == len(keys)
