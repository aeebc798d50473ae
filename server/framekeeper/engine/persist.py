"""Writes that must not be lost to an outage of the database."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

from framekeeper.errors import DatabaseUnavailable

log = structlog.get_logger()
Result = TypeVar("Result")

#: Seconds between tries; the last one repeats.
PAUSES = (0.5, 1.0, 2.0, 5.0)


async def persist(write: Callable[[], Awaitable[Result]]) -> Result:
    """Repeat a database write until the database is back: an outage must not lose what happened."""
    tries = 0
    while True:
        try:
            return await write()
        except DatabaseUnavailable:
            if tries == 0:
                log.warning("database away, result kept until it is back")
            await asyncio.sleep(PAUSES[min(tries, len(PAUSES) - 1)])
            tries += 1
