"""The supervisor's own port answers to names that no stranger can have point at it."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from framekeeper.engine.port import application
from framekeeper.gateway.reach import Names
from framekeeper.settings import Settings


async def status(name: str | None, path: str = "/metrics", **values: Any) -> tuple[int, str]:
    settings = Settings(database_url="postgresql://x", **values)
    app = application([], Names(settings, settings.supervisor_host))
    headers = {} if name is None else {"host": name}
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app=app), base_url="http://127.0.0.1:8001"
    ) as client:
        answer = await client.get(path, headers=headers)
    return answer.status_code, answer.text


@pytest.mark.parametrize("path", ["/metrics", "/health/live", "/health/startup", "/nowhere"])
async def test_a_strangers_name_is_told_nothing_at_any_path(path: str) -> None:
    code, text = await status("evil.example:8001", path)
    assert code == 421
    assert "evil.example" in text
    assert "FRAMEKEEPER_ALLOWED_HOSTS" in text
    assert "framekeeper_" not in text


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        (None, {}, 200),
        ("localhost:8001", {}, 200),
        ("engine:8001", {}, 421),
        ("engine:8001", {"supervisor_host": "0.0.0.0"}, 200),
        ("10.1.2.3:8001", {"supervisor_host": "0.0.0.0"}, 200),
        ("evil.example", {"supervisor_host": "0.0.0.0"}, 421),
        ("gpu1.example", {"supervisor_host": "0.0.0.0", "allowed_hosts": "gpu1.example"}, 200),
        # The gateway's keys and its address say nothing about this port.
        ("evil.example", {"auth": "on"}, 421),
        ("engine:8001", {"host": "0.0.0.0"}, 421),
    ],
)  # fmt: skip
async def test_names_that_are_answered(name: str | None, values: dict[str, Any], expected: int) -> None:
    assert (await status(name, **values))[0] == expected
