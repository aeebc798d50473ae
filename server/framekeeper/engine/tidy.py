"""Keeping the media directory tidy: retention, leftovers, and how full it is; one loop in each supervisor."""

from __future__ import annotations

import asyncio

import structlog

from framekeeper import metrics
from framekeeper.database.pool import Database
from framekeeper.errors import DatabaseUnavailable
from framekeeper.jobs import retention
from framekeeper.media.store import MediaStore
from framekeeper.settings import Settings

log = structlog.get_logger()

#: Seconds between two looks.
TIDY_SECONDS = 20.0
DAY = 86400.0


def keep_of(settings: Settings) -> retention.Keep:
    """What the settings say about retention."""
    return retention.Keep(
        seconds=settings.retention_days * DAY,
        videos=settings.retention_videos,
        bytes=settings.retention_bytes,
        record_seconds=settings.record_days * DAY,
        incident_seconds=settings.incident_days * DAY,
        engine_seconds=settings.engine_days * DAY,
    )


async def keep_tidy(settings: Settings, database: Database) -> None:
    """Look again and again, for ever; a look that fails is not the last one."""
    store, keep = MediaStore(settings.media_directory), keep_of(settings)
    silent: retention.Silent = frozenset()
    while True:
        try:
            await tidy(database, store, keep)
            silent = await retention.forget_engines(database, keep, silent)
        except DatabaseUnavailable:
            pass
        except Exception:
            log.exception("keeping the media directory tidy failed")
        await asyncio.sleep(TIDY_SECONDS)


async def tidy(database: Database, store: MediaStore, keep: retention.Keep) -> None:
    """One look: expire, remove, sweep, forget, measure. Raises DatabaseUnavailable."""
    while expired := await retention.expire(database, keep):
        for each in expired:
            await asyncio.to_thread(store.remove, each.video.id)
            metrics.retention_removed.labels(each.reason).inc()
            log.info("video expired", video_id=each.video.id, reason=each.reason, bytes=each.video.bytes)
    for video_id in await retention.abandoned(database, store.root):
        await asyncio.to_thread(store.remove, video_id)
        metrics.retention_removed.labels("orphan").inc()
        log.info("files that nobody may ask for removed", video_id=video_id)
    for path in await retention.abandoned_inputs(database, store):
        await asyncio.to_thread(path.unlink, missing_ok=True)
    await retention.announce(database, keep)
    if forgotten := await retention.forget(database, keep):
        log.info("old jobs forgotten", jobs=forgotten)
