"""Idempotency keys: the same key with the same body means the same jobs, also in a race of many gateways."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from typing import Any

from framekeeper.database.pool import Connection, Database
from framekeeper.errors import IdempotencyKeyReused, InvalidRequest
from framekeeper.jobs.fields import shown
from framekeeper.jobs.reference import UploadedFile
from framekeeper.jobs.retention import IDEMPOTENCY_SECONDS

#: As wide as clients make them (https://datatracker.ietf.org/doc/draft-ietf-httpapi-idempotency-key-header/).
KEY = re.compile(r"[\x21-\x7e]{1,255}", re.ASCII)
_LIVING = f"created_at > clock_timestamp() - make_interval(secs => {IDEMPOTENCY_SECONDS})"


def checked(key: str) -> str:
    """The key as it is. Raises InvalidRequest for one that cannot be used."""
    if not KEY.fullmatch(key):
        raise InvalidRequest(
            f"Idempotency-Key={shown(key)} is not 1 to 255 printable ASCII characters without spaces: "
            "set for example a UUID.",
            param="Idempotency-Key",
        )
    return key


def fingerprint(kind: str, body: Any) -> str:
    """A hash of what is asked for; the order of fields does not matter."""
    text = json.dumps([kind, body], sort_keys=True, default=_stand_in, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _stand_in(value: Any) -> Any:
    """A file counts by what it holds, whatever it is called."""
    return ["file", value.sha256] if isinstance(value, UploadedFile) else repr(value)


async def find(database: Database, owner: str | None, key: str, body_hash: str) -> list[str] | None:
    """Ids of the jobs that were made with this key, or None. Raises IdempotencyKeyReused for another body."""
    row = await database.fetch_one(
        f"""
        SELECT body_hash, video_ids FROM idempotency_keys
        WHERE owner = %(owner)s AND key = %(key)s AND {_LIVING}
        """,
        {"owner": owner or "", "key": key},
    )
    return _same(row, key, body_hash) if row else None


async def claim(connection: Connection, owner: str | None, key: str, body_hash: str) -> list[str] | None:
    """Take the key in this transaction; ids of the jobs of whoever took it before, or None.

    A second one waits here until the first has ended: then it finds its jobs, or the key free again.
    """
    values = {"owner": owner or "", "key": key, "hash": body_hash}
    await connection.execute(
        f"DELETE FROM idempotency_keys WHERE owner = %(owner)s AND key = %(key)s AND NOT ({_LIVING})", values
    )
    cursor = await connection.execute(
        """
        INSERT INTO idempotency_keys (owner, key, body_hash) VALUES (%(owner)s, %(key)s, %(hash)s)
        ON CONFLICT DO NOTHING RETURNING key
        """,
        values,
    )
    if await cursor.fetchone() is not None:
        return None
    cursor = await connection.execute(
        "SELECT body_hash, video_ids FROM idempotency_keys WHERE owner = %(owner)s AND key = %(key)s", values
    )
    row = await cursor.fetchone()
    return _same(row, key, body_hash) if row else None


async def keep(connection: Connection, owner: str | None, key: str, video_ids: Sequence[str]) -> None:
    """Store which jobs were made with a key that was claimed in this transaction."""
    await connection.execute(
        "UPDATE idempotency_keys SET video_ids = %(ids)s WHERE owner = %(owner)s AND key = %(key)s",
        {"owner": owner or "", "key": key, "ids": list(video_ids)},
    )


def _same(row: dict[str, Any], key: str, body_hash: str) -> list[str]:
    if row["body_hash"] != body_hash:
        raise IdempotencyKeyReused(
            f"Idempotency-Key={shown(key)} was used with another body: set a new key for another request.",
            param="Idempotency-Key",
        )
    ids: list[str] = row["video_ids"]
    return ids
