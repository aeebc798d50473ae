"""OpenAI's client for JavaScript, unchanged, against a real server."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from framekeeper.database.pool import Database
from framekeeper.settings import Settings
from gateway.test_openai_client import claim, complete

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("ready_engine")]

PACKAGE = "openai@6"
SCRIPT = Path(__file__).parent / "npm" / "client.mjs"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """The script beside the installed client."""
    if not shutil.which("node") or not shutil.which("npm"):
        pytest.skip("needs node and npm")
    install = subprocess.run(
        ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", tmp_path, PACKAGE],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    if install.returncode:
        pytest.skip(f"npm cannot install {PACKAGE}: {install.stderr[-300:]}")
    return Path(shutil.copy(SCRIPT, tmp_path))


async def finish_videos(database: Database, media: Path) -> None:
    """The engine: makes every video whose prompt is `finish`."""
    while True:
        rows = await database.fetch_all(
            "SELECT id FROM videos WHERE state = 'queued' AND request ->> 'prompt' = 'finish'"
        )
        for row in rows:
            await complete(database, await claim(database, row["id"]), media)
        await asyncio.sleep(0.05)


async def test_every_call_of_the_javascript_client_works(
    script: Path, url: str, database: Database, settings: Settings
) -> None:
    await database.execute('UPDATE engines SET admits = admits || \'{"image": "optional"}\'')
    engine = asyncio.create_task(finish_videos(database, settings.media_directory))
    node = await asyncio.create_subprocess_exec(
        "node", script, url, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(60):
        output, faults = await node.communicate()
    engine.cancel()
    assert node.returncode == 0, faults.decode()
    seen: dict[str, Any] = json.loads(output)
    assert seen == {
        "created": ["video", "queued", "64x64"],
        "polled": ["completed", 100],
        "content": "an mp4",
        "thumbnail": "a jpeg",
        "listed": ["finish", "wait 0", "wait 1", "wait 2", "wait 3"],
        "deleted": True,
        "same": True,
        "bad": ["BadRequestError", 400, "invalid_request", "size"],
        "missing": ["NotFoundError", 404, "video_not_found", "video_id"],
        "early": ["ConflictError", 409, "video_not_finished", "video_id"],
        "reused": ["ConflictError", 409, "idempotency_key_reused", "Idempotency-Key"],
        "picture": ["BadRequestError", 400, "invalid_request", "input_reference"],
        "started": [True, True],
        "elsewhere": ["BadRequestError", 400, "invalid_request", "input_reference"],
        "models": ["tiny"],
    }
