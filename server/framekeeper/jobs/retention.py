"""Which finished videos are kept, and for how long: by age, by number and by bytes of each owner. What else
would pile up in the database goes by age.

Two steps, so that a program that dies in between loses nothing and leaves nothing: the row says `expired`
first, then the files go; a sweep finds what was left behind, also files that no row speaks of.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from framekeeper.database.pool import Database
from framekeeper.jobs.video import COLUMNS, Video, VideoState, accepted_at
from framekeeper.media.store import MediaStore

#: A directory without a row is left alone for so long: its job may be about to be accepted.
ORPHAN_SECONDS = 3600.0
#: Rows looked at in one go.
BATCH = 500
#: How long an idempotency key is remembered, and a finished webhook delivery for whoever looks into it.
IDEMPOTENCY_SECONDS = 24 * 3600.0
DELIVERY_SECONDS = 7 * 86400.0
#: Measured seconds older than this say little about the machine as it is.
MEASURED_SECONDS = 30 * 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """What is kept of each owner; 0 means no limit. A key's own limits go before these."""

    seconds: float = 0
    videos: int = 0
    bytes: int = 0
    #: Rows of final jobs, prompts included, are forgotten so long after their end.
    record_seconds: float = 0
    incident_seconds: float = 0
    #: Engines, by when they were last heard of.
    engine_seconds: float = 0


@dataclass(frozen=True, slots=True)
class Expired:
    """A video that is kept no longer, and which limit it was over: age, count or bytes."""

    video: Video
    reason: str


async def expire(database: Database, keep: Keep) -> list[Expired]:
    """Mark videos over a limit as `expired`, the oldest first, and return them; their files are still there.

    Several supervisors may do this at once: each row is returned to one of them. Raises DatabaseUnavailable.
    """
    rows = await database.fetch_all(
        f"""
        WITH kept AS (
            SELECT v.id,
                v.completed_at,
                row_number() OVER newest AS place,
                sum(coalesce(v.bytes, 0)) OVER newest AS filled,
                coalesce((k.limits ->> 'retention_seconds')::float8, %(seconds)s) AS seconds,
                coalesce((k.limits ->> 'retention_videos')::bigint, %(videos)s) AS videos,
                coalesce((k.limits ->> 'retention_bytes')::bigint, %(bytes)s) AS bytes
            FROM videos v LEFT JOIN api_keys k ON k.id = v.owner
            WHERE v.state = 'completed' AND v.deleted_at IS NULL
            WINDOW newest AS (PARTITION BY v.owner ORDER BY v.completed_at DESC, v.id DESC)
        ), over AS (
            SELECT id, CASE
                WHEN seconds > 0 AND completed_at < clock_timestamp() - make_interval(secs => seconds)
                    THEN 'age'
                WHEN videos > 0 AND place > videos THEN 'count'
                WHEN bytes > 0 AND filled > bytes THEN 'bytes'
            END AS reason FROM kept
        ), chosen AS (
            SELECT v.id, over.reason FROM videos v JOIN over ON over.id = v.id
            WHERE over.reason IS NOT NULL AND v.state = 'completed'
            ORDER BY v.completed_at LIMIT {BATCH} FOR UPDATE OF v SKIP LOCKED
        )
        UPDATE videos v SET state = 'expired', expires_at = clock_timestamp()
        FROM chosen WHERE v.id = chosen.id
        RETURNING {", ".join("v." + name for name in COLUMNS.split(", "))}, chosen.reason
        """,
        {"seconds": keep.seconds, "videos": keep.videos, "bytes": keep.bytes},
    )
    return [Expired(Video.from_row(row), reason) for row in rows if (reason := row.pop("reason"))]


async def announce(database: Database, keep: Keep) -> None:
    """Write into the rows of finished videos when they will expire by age."""
    await database.execute(
        """
        WITH due AS (
            SELECT v.id, v.completed_at + make_interval(secs => nullif(
                coalesce((k.limits ->> 'retention_seconds')::float8, %(seconds)s), 0)) AS at
            FROM videos v LEFT JOIN api_keys k ON k.id = v.owner WHERE v.state = 'completed'
        )
        UPDATE videos v SET expires_at = due.at FROM due
        WHERE v.id = due.id AND v.state = 'completed' AND v.expires_at IS DISTINCT FROM due.at
        """,
        {"seconds": keep.seconds},
    )


async def forget(database: Database, keep: Keep) -> int:
    """Remove rows of final jobs whose time is over, and what requests left long ago; return how many jobs."""
    for table, seconds in (
        ("idempotency_keys WHERE created_at", IDEMPOTENCY_SECONDS),
        ("webhook_deliveries WHERE coalesce(delivered_at, given_up_at)", DELIVERY_SECONDS),
        ("measured_seconds WHERE at", MEASURED_SECONDS),
    ):
        await database.execute(
            f"DELETE FROM {table} < clock_timestamp() - make_interval(secs => %(seconds)s)",
            {"seconds": seconds},
        )
    if keep.incident_seconds:
        await database.execute(
            "DELETE FROM incidents WHERE at < clock_timestamp() - make_interval(secs => %(seconds)s)",
            {"seconds": keep.incident_seconds},
        )
    if not keep.record_seconds:
        return 0
    rows = await database.fetch_all(
        """
        DELETE FROM videos WHERE state IN ('failed', 'cancelled', 'expired')
            AND coalesce(expires_at, completed_at) < clock_timestamp() - make_interval(secs => %(seconds)s)
        RETURNING id
        """,
        {"seconds": keep.record_seconds},
    )
    return len(rows)


#: Engines by name, and when they were last heard of.
Silent = frozenset[tuple[str, datetime]]


async def forget_engines(database: Database, keep: Keep, silent: Silent = frozenset()) -> Silent:
    """Remove the engines that have been silent for too long, with what is known only for their sake.

    Only those that are in `silent`, what the look before has returned: when the database's clock is put
    forward, an engine that lives looks silent until its next heartbeat, and its supervisor would end without
    its row. Returns the silent ones that are left.
    """
    if not keep.engine_seconds:
        return frozenset()
    values = {"seconds": keep.engine_seconds}
    old = "clock_timestamp() - make_interval(secs => %(seconds)s)"
    rows = await database.fetch_all(
        f"SELECT id, heartbeat_at FROM engines WHERE heartbeat_at < {old}", values
    )
    found = frozenset((row["id"], row["heartbeat_at"]) for row in rows)
    for engine_id, heard in sorted(found & silent):
        await database.execute(
            "DELETE FROM engines WHERE id = %(id)s AND heartbeat_at = %(heard)s",
            {"id": engine_id, "heard": heard},
        )
    for table in (
        f"engine_rungs r WHERE rung_since < {old}"
        " AND NOT EXISTS (SELECT FROM engines WHERE id = r.engine_id)",
        f"model_service s WHERE served_at < {old} AND NOT EXISTS (SELECT FROM engines WHERE model = s.model)"
        " AND NOT EXISTS (SELECT FROM videos WHERE model = s.model AND state = 'queued')",
    ):
        await database.execute(f"DELETE FROM {table}", values)
    return found - silent


async def abandoned(database: Database, root: Path, *, orphan_seconds: float = ORPHAN_SECONDS) -> list[str]:
    """Ids of job directories below `root` whose files nobody may ask for any more.

    Those are directories of final jobs that have no files, and of jobs without a row once they are old
    enough. What is not named like a job is not ours and is left alone. Raises DatabaseUnavailable.
    """
    found = [entry.name for entry in _directories(root) if accepted_at(entry.name) is not None]
    left: list[str] = []
    for start in range(0, len(found), BATCH):
        ids = found[start : start + BATCH]
        rows = await database.fetch_all("SELECT id, state FROM videos WHERE id = ANY(%(ids)s)", {"ids": ids})
        states = {row["id"]: VideoState(row["state"]) for row in rows}
        for video_id in ids:
            state = states.get(video_id)
            if state is None:
                if _age(root / video_id) >= orphan_seconds:
                    left.append(video_id)
            elif state.final and state is not VideoState.COMPLETED:
                left.append(video_id)
    return left


async def abandoned_inputs(
    database: Database, store: MediaStore, *, orphan_seconds: float = ORPHAN_SECONDS
) -> list[Path]:
    """Pictures that no job will start from any more: those of final jobs, and old files of no job.

    What is not named as we name them is left alone. Raises DatabaseUnavailable.
    """
    found = store.inputs()
    pictures = {path.stem: path for path in found if accepted_at(path.stem) is not None}
    rows = []
    if pictures:
        rows = await database.fetch_all(
            "SELECT id, state FROM videos WHERE id = ANY(%(ids)s)", {"ids": list(pictures)}
        )
    states = {row["id"]: VideoState(row["state"]) for row in rows}
    left = [pictures[video_id] for video_id, state in states.items() if state.final]
    half = [path for path in found if path.suffix == ".part"]
    nobodys = [path for video_id, path in pictures.items() if video_id not in states] + half
    return left + [path for path in nobodys if _age(path) >= orphan_seconds]


def _directories(root: Path) -> Sequence[Path]:
    try:
        return [entry for entry in root.iterdir() if entry.is_dir() and not entry.is_symlink()]
    except FileNotFoundError:
        return []


def _age(path: Path) -> float:
    """Seconds since a file, or anything in a directory, was written; 0 when it is gone."""
    try:
        within = path.iterdir() if path.is_dir() else ()
        newest: float = max(each.stat(follow_symlinks=False).st_mtime for each in (path, *within))
    except FileNotFoundError:
        return 0.0
    return time.time() - newest
