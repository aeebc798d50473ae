"""Another supervisor under this host's name: two of them would take each other's engines in turn."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import structlog

from framekeeper.database.pool import Database
from framekeeper.jobs.engines import AGE
from framekeeper.settings import Settings

log = structlog.get_logger()

#: Seconds between two looks at a heartbeat.
LOOK_SECONDS = 0.25
# A supervisor that was killed has no connection any more, so that its successor is never kept waiting. One
# whose host lost its power may keep one for hours, as far as the server knows.
_OTHERS = f"""
    SELECT e.id, e.heartbeat_at, a.client_addr::text AS address
    FROM engines e JOIN pg_stat_activity a
        ON a.datname = current_database() AND a.application_name = %(prefix)s || e.run_id
    WHERE e.host = %(host)s AND e.state <> 'stopped' AND {AGE} < %(stale)s
    ORDER BY e.heartbeat_at DESC LIMIT 1
"""
_PREFIX = "framekeeper-supervisor "


def connection_name(run_id: str) -> str:
    """What the server calls the connections of this run of a supervisor; at most 63 bytes are kept."""
    return _PREFIX + run_id


async def namesake(database: Database, settings: Settings) -> str | None:
    """The sentence about a living supervisor of this name; None when there is none.

    A row and a connection may be all that is left of one, so its heart is watched for half of
    `stale_seconds`, three beats. Raises DatabaseUnavailable.
    """
    first = other = await _other(database, settings)
    ends = time.monotonic() + settings.stale_seconds / 2
    if first is not None:
        log.warning("another supervisor may have this host's name", host_id=settings.host_id)
    while first is not None and other is not None and time.monotonic() < ends:
        if (other["id"], other["heartbeat_at"]) != (first["id"], first["heartbeat_at"]):
            where = f" (from {other['address']})" if other["address"] else ""
            return (
                f"FRAMEKEEPER_HOST_ID={settings.host_id}: another supervisor with this name runs{where} and "
                f"has the engine {other['id']}; stop it, or set FRAMEKEEPER_HOST_ID to another name here"
            )
        await asyncio.sleep(LOOK_SECONDS)
        other = await _other(database, settings)
    return None


async def _other(database: Database, settings: Settings) -> dict[str, Any] | None:
    wanted = {"prefix": _PREFIX, "host": settings.host_id, "stale": settings.stale_seconds}
    return await database.fetch_one(_OTHERS, wanted)
