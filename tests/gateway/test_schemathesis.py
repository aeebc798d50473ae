"""Thousands of requests made from the API's own description: every answer is one that it describes."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from framekeeper.database.pool import Database
from framekeeper.jobs.engines import EngineState
from framekeeper.keys import rows
from framekeeper.keys.key import Scope
from framekeeper.settings import Settings
from gateway.conftest import register, report
from gateway.serving import served

SECONDS = 25
#: What a request may be refused for is more than its schema says: sizes that no engine admits, fields that
#: contradict each other.
UNTOLD = "positive_data_acceptance"
#: Their answers come when a video is done, or do not end.
ENDLESS = ("/v1/videos/sync", "/v1/videos/{video_id}/events")


async def prepared(url: str) -> str:
    """A database with a ready engine; returns the secret of a key that may do everything."""
    database = Database(url, size=1)
    await database.open()
    await register(database)
    await report(database, EngineState.READY)
    _, secret = await rows.create(database, "tester", list(Scope))
    await database.close()
    return secret


@pytest.mark.slow
def test_every_answer_is_as_described(postgres_url: str, tmp_path: Path) -> None:
    secret = asyncio.run(prepared(postgres_url))
    settings = Settings(
        database_url=postgres_url, var=tmp_path / "var", min_free_bytes=0, stale_seconds=900, auth="on",
        queue_jobs=10**6, key_jobs=0, key_jobs_per_minute=0,
    )  # fmt: skip
    with served(settings) as base:
        command = [
            sys.executable, "-m", "schemathesis.cli", "run", f"{base}/openapi.json",
            "--header", f"Authorization: Bearer {secret}",
            "--exclude-checks", UNTOLD,
            "--max-time", str(SECONDS), "--continue-on-failure", "--suppress-health-check", "all",
            "--warnings", "off",
        ]  # fmt: skip
        for path in ENDLESS:
            command += ["--exclude-path", path]
        run = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=8 * SECONDS
        )
    assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-2000:]
    assert "Tested:" in run.stdout
