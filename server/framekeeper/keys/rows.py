"""The keys in the database."""

from __future__ import annotations

import hmac
from collections.abc import Collection
from uuid import uuid4

import msgspec
from psycopg.types.json import Jsonb

from framekeeper.database.pool import Database
from framekeeper.keys.key import COLUMNS, NO_LIMITS, Key, KeyLimits, Scope, digest, new_secret


class NameTaken(Exception):
    """There is a key of this name, valid or revoked."""


async def create(
    database: Database, name: str, scopes: Collection[Scope], limits: KeyLimits = NO_LIMITS
) -> tuple[Key, str]:
    """Make a key; returns it with its secret, kept nowhere else. Raises NameTaken, DatabaseUnavailable."""
    secret = new_secret()
    row = await database.fetch_one(
        f"""
        INSERT INTO api_keys (id, name, hash, scopes, limits)
        VALUES (%(id)s, %(name)s, %(hash)s, %(scopes)s, %(limits)s)
        ON CONFLICT (name) DO NOTHING RETURNING {COLUMNS}
        """,
        {
            "id": f"key_{uuid4().hex[:12]}",
            "name": name,
            "hash": digest(secret),
            "scopes": sorted(scope.value for scope in scopes),
            "limits": Jsonb(msgspec.to_builtins(limits)),
        },
    )
    if row is None:
        raise NameTaken(name)
    return Key.from_row(row), secret


async def all_keys(database: Database) -> list[Key]:
    """Every key, revoked ones as well, by age."""
    rows = await database.fetch_all(f"SELECT {COLUMNS} FROM api_keys ORDER BY created_at")
    return [Key.from_row(row) for row in rows]


async def unfinished(database: Database) -> dict[str, int]:
    """How many jobs of each key, by its id, are waiting or being made. Raises DatabaseUnavailable."""
    rows = await database.fetch_all(
        "SELECT owner, count(*) AS jobs FROM videos "
        "WHERE state IN ('queued', 'in_progress') AND owner IS NOT NULL GROUP BY owner"
    )
    return {row["owner"]: row["jobs"] for row in rows}


async def revoke(database: Database, name: str) -> Key | None:
    """End a key, given by its name or id; None when there is none. Its jobs stay. Twice changes nothing."""
    row = await database.fetch_one(
        f"""
        UPDATE api_keys SET revoked_at = coalesce(revoked_at, clock_timestamp())
        WHERE name = %(name)s OR id = %(name)s RETURNING {COLUMNS}
        """,
        {"name": name},
    )
    return Key.from_row(row) if row else None


async def valid(database: Database, secret: str) -> Key | None:
    """The key of this secret, unless it is unknown or revoked. Notes its use once a minute."""
    wanted = digest(secret)
    row = await database.fetch_one(
        f"""
        SELECT {COLUMNS}, coalesce(last_used_at < clock_timestamp() - interval '1 minute', true) AS stale
        FROM api_keys WHERE hash = %(hash)s AND revoked_at IS NULL
        """,
        {"hash": wanted},
    )
    # The index has compared digests, which tell nothing of a secret; this is for whoever changes the query.
    if row is None or not hmac.compare_digest(row["hash"], wanted):
        return None
    if row.pop("stale"):
        await database.fetch_one(
            "UPDATE api_keys SET last_used_at = clock_timestamp() WHERE id = %(id)s RETURNING id",
            {"id": row["id"]},
        )
    return Key.from_row(row)
