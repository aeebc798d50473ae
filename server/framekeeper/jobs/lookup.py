"""Reading jobs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from framekeeper.database.pool import Database
from framekeeper.errors import InvalidRequest, VideoNotFound
from framekeeper.jobs.video import COLUMNS, Video, VideoState, accepted_at

#: SQL for the rows that a caller may know of: all, where `sees` is NULL, else those of this owner.
VISIBLE = "deleted_at IS NULL AND (%(sees)s::text IS NULL OR owner = %(sees)s)"


async def find(database: Database, video_id: str, *, sees: str | None = None) -> Video:
    """One job, of the owner `sees` or, with None, of any.

    Raises VideoNotFound (also for a deleted one, and for one of somebody else) or DatabaseUnavailable.
    """
    row = await database.fetch_one(
        f"SELECT {COLUMNS} FROM videos WHERE id = %(id)s AND {VISIBLE}",
        {"id": video_id, "sees": sees},
    )
    if row is None:
        raise VideoNotFound(f"There is no video with the id {video_id!r}.", param="video_id")
    return Video.from_row(row)


@dataclass(frozen=True, slots=True, kw_only=True)
class Only:
    """Which jobs a page is made of; None means any."""

    sees: str | None = None
    state: VideoState | None = None
    batch_id: str | None = None


EVERYTHING = Only()


async def page(
    database: Database,
    *,
    limit: int,
    after: str | None = None,
    order: Literal["asc", "desc"] = "desc",
    only: Only = EVERYTHING,
) -> tuple[list[Video], bool]:
    """Up to `limit` jobs by creation, starting behind the job `after`; and whether more follow.

    The job `after` may have been deleted meanwhile. Raises InvalidRequest when it cannot have existed.
    """
    compare, direction = ("<", "DESC") if order == "desc" else (">", "ASC")
    behind, moment = "", None
    if after is not None:
        anchor = await database.fetch_one("SELECT created_at FROM videos WHERE id = %(id)s", {"id": after})
        moment = anchor["created_at"] if anchor else accepted_at(after)
        if moment is None:
            raise InvalidRequest(f"after={after!r}: there was no video with this id.", param="after")
        behind = f"AND (created_at, id) {compare} (%(moment)s, %(after)s)"
    rows = await database.fetch_all(
        f"""
        SELECT {COLUMNS} FROM videos WHERE {VISIBLE} {behind}
            AND (%(state)s::text IS NULL OR state = %(state)s)
            AND (%(batch)s::text IS NULL OR batch_id = %(batch)s)
        ORDER BY created_at {direction}, id {direction} LIMIT %(limit)s
        """,
        {
            "after": after,
            "moment": moment,
            "limit": limit + 1,
            "sees": only.sees,
            "state": only.state,
            "batch": only.batch_id,
        },
    )
    return [Video.from_row(row) for row in rows[:limit]], len(rows) > limit
