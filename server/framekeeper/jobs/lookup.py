"""Reading jobs."""

from __future__ import annotations

from typing import Literal

from framekeeper.database.pool import Database
from framekeeper.errors import InvalidRequest, VideoNotFound
from framekeeper.jobs.video import COLUMNS, Video


async def find(database: Database, video_id: str) -> Video:
    """One job. Raises VideoNotFound (also for a deleted one) or DatabaseUnavailable."""
    row = await database.fetch_one(
        f"SELECT {COLUMNS} FROM videos WHERE id = %(id)s AND deleted_at IS NULL",
        {"id": video_id},
    )
    if row is None:
        raise VideoNotFound(f"There is no video with the id {video_id!r}.", param="video_id")
    return Video.from_row(row)


async def page(
    database: Database,
    *,
    limit: int,
    after: str | None = None,
    order: Literal["asc", "desc"] = "desc",
) -> tuple[list[Video], bool]:
    """Up to `limit` jobs by creation, starting behind the job `after`; and whether more follow.

    Raises InvalidRequest when there is no job `after`.
    """
    compare, direction = ("<", "DESC") if order == "desc" else (">", "ASC")
    behind = ""
    if after is not None:
        anchor = await database.fetch_one("SELECT 1 FROM videos WHERE id = %(after)s", {"after": after})
        if anchor is None:
            raise InvalidRequest(f"after={after!r}: there is no video with this id.", param="after")
        behind = f"AND (created_at, id) {compare} (SELECT created_at, id FROM videos WHERE id = %(after)s)"
    rows = await database.fetch_all(
        f"""
        SELECT {COLUMNS} FROM videos WHERE deleted_at IS NULL {behind}
        ORDER BY created_at {direction}, id {direction} LIMIT %(limit)s
        """,
        {"after": after, "limit": limit + 1},
    )
    return [Video.from_row(row) for row in rows[:limit]], len(rows) > limit
