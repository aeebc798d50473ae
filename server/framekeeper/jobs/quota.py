"""What one owner may use: jobs a minute, and jobs that are not finished.

In the database, since an owner's requests reach every gateway process: a limiter in a process's memory would
allow each process the whole rate. It is in the transaction that accepts the job, so that a job which is
refused for another reason costs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from framekeeper.database.pool import Connection
from framekeeper.errors import RateLimited, TooManyJobs


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """0 means any number. `per_minute` may be used at once after a minute of rest."""

    jobs: int
    per_minute: float


async def charge(connection: Connection, owner: str, quota: Quota, *, jobs: int = 1) -> None:
    """Take `jobs` from the owner's quota, in the caller's transaction.

    Raises TooManyJobs or RateLimited, which has to end the transaction. Until it ends, the owner's other
    submissions wait, so that the numbers are exact.
    """
    await connection.execute(
        "SELECT pg_advisory_xact_lock(hashtextextended('framekeeper quota ' || %(owner)s, 0))",
        {"owner": owner},
    )
    if quota.jobs:
        await _require_few(connection, owner, quota.jobs, jobs)
    if quota.per_minute:
        await _take(connection, owner, quota.per_minute, jobs)


async def _require_few(connection: Connection, owner: str, most: int, jobs: int) -> None:
    cursor = await connection.execute(
        "SELECT count(*) AS open FROM videos WHERE owner = %(owner)s AND state IN ('queued', 'in_progress')",
        {"owner": owner},
    )
    row = await cursor.fetchone()
    assert row is not None
    if row["open"] + jobs > most:
        raise TooManyJobs(
            f"This key has {row['open']} unfinished jobs, and it may have {most}: wait until one ends, or "
            "cancel one.",
            retry_after=10,
        )


async def _take(connection: Connection, owner: str, per_minute: float, jobs: int) -> None:
    """A bucket that holds a minute's tokens, and fills at their rate."""
    most = max(1.0, per_minute)
    cursor = await connection.execute(
        """
        INSERT INTO api_rates AS bucket (owner, tokens) VALUES (%(owner)s, %(most)s)
        ON CONFLICT (owner) DO UPDATE SET at = clock_timestamp(), tokens = least(%(most)s,
            bucket.tokens + extract(epoch FROM clock_timestamp() - bucket.at)::float8 * %(rate)s)
        RETURNING tokens
        """,
        {"owner": owner, "most": most, "rate": per_minute / 60},
    )
    row = await cursor.fetchone()
    assert row is not None
    # A batch that is larger than the bucket takes all of a full one: it could never be submitted otherwise.
    needed = min(float(jobs), most)
    if row["tokens"] < needed:
        wait = (needed - row["tokens"]) / (per_minute / 60)
        raise RateLimited(
            f"This key may submit {per_minute:g} jobs a minute: the next in {wait:.1f} s.", retry_after=wait
        )
    await connection.execute(
        "UPDATE api_rates SET tokens = tokens - %(jobs)s WHERE owner = %(owner)s",
        {"owner": owner, "jobs": jobs},
    )
