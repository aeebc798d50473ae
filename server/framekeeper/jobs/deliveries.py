"""Webhook deliveries as the database knows them: entered with the job's end, in its transaction, and retried.

Whichever gateway process is free takes the next one that is due; a process that dies has only borrowed it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from psycopg.types.json import Jsonb

from framekeeper.database.pool import Connection, Database
from framekeeper.jobs.video import Video

#: Pauses before the next try, in seconds, as Standard Webhooks proposes them
#: (https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md).
PAUSES = (5, 300, 1800, 7200, 18000, 36000, 50400)
#: A process that has taken a delivery has so long before another may take it.
BORROWED_SECONDS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One that is to be made now. `tries` counts this one."""

    id: str
    video_id: str
    url: str
    payload: dict[str, Any]
    tries: int


async def enter(connection: Connection, video: Video) -> None:
    """Enter the delivery of a job that has just reached its final state, where its owner wants one."""
    if video.webhook_url is None:
        return
    kind = f"video.{video.state}"
    now = datetime.now(UTC)
    data: dict[str, Any] = {"id": video.id, "status": video.state.value}
    if video.error_code:
        data["error"] = {"code": video.error_code, "message": video.error_message or ""}
    # The shape of OpenAI's events (https://platform.openai.com/docs/guides/webhooks).
    payload = {"object": "event", "type": kind, "created_at": int(now.timestamp()), "data": data}
    await connection.execute(
        """
        INSERT INTO webhook_deliveries (id, video_id, owner, url, event, payload)
        VALUES ('evt_' || replace(gen_random_uuid()::text, '-', ''), %(video)s, %(owner)s, %(url)s, %(event)s,
            %(payload)s)
        """,
        {
            "video": video.id,
            "owner": video.owner,
            "url": video.webhook_url,
            "event": kind,
            "payload": Jsonb(payload),
        },
    )


async def take(database: Database, *, most: int = 10) -> list[Delivery]:
    """Borrow the deliveries that are due. Raises DatabaseUnavailable."""
    rows = await database.fetch_all(
        """
        UPDATE webhook_deliveries SET tries = tries + 1,
            next_at = clock_timestamp() + make_interval(secs => %(borrowed)s)
        WHERE id IN (
            SELECT id FROM webhook_deliveries
            WHERE delivered_at IS NULL AND given_up_at IS NULL AND next_at <= clock_timestamp()
            ORDER BY next_at LIMIT %(most)s FOR UPDATE SKIP LOCKED
        )
        RETURNING id, video_id, url, payload, tries
        """,
        {"borrowed": BORROWED_SECONDS, "most": most},
    )
    return [Delivery(**row) for row in rows]


async def delivered(database: Database, delivery: Delivery) -> None:
    """The receiver has it."""
    await database.execute(
        "UPDATE webhook_deliveries SET delivered_at = clock_timestamp() WHERE id = %(id)s",
        {"id": delivery.id},
    )


async def failed(database: Database, delivery: Delivery, error: str) -> float | None:
    """Put it off; the seconds until the next try, or None when it is given up."""
    pause = PAUSES[delivery.tries - 1] if delivery.tries <= len(PAUSES) else None
    await database.execute(
        """
        UPDATE webhook_deliveries SET last_error = %(error)s,
            next_at = clock_timestamp() + make_interval(secs => %(pause)s),
            given_up_at = CASE WHEN %(given_up)s THEN clock_timestamp() END
        WHERE id = %(id)s
        """,
        {"id": delivery.id, "error": error[:500], "pause": pause or 0, "given_up": pause is None},
    )
    return pause
