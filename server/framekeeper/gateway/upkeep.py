"""What gateways see to beside answering: webhooks, and that no job waits without a word.

Supervisors look for jobs without an engine, too, and oftener; but gateways may be all that is left. Each job
is ended once, whoever finds it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import structlog

from framekeeper.database.pool import Database
from framekeeper.gateway import metrics
from framekeeper.gateway.webhooks import keep_delivering
from framekeeper.jobs import reconcile
from framekeeper.jobs.unserved import Watch
from framekeeper.jobs.video import VideoState
from framekeeper.media.store import MediaStore
from framekeeper.round import went_well
from framekeeper.settings import Settings

log = structlog.get_logger(__name__)

#: Between two looks.
LOOK_SECONDS = 10.0
#: No living supervisor for so long: jobs in progress are lost. A living one knows by itself, and sooner.
ALONE_SECONDS = 300.0


@asynccontextmanager
async def going_on(database: Database, settings: Settings) -> AsyncIterator[None]:
    """Do it all while the context is open."""
    tasks = [
        asyncio.create_task(keep_delivering(database, settings), name="webhooks"),
        asyncio.create_task(_keep_looking(database, settings), name="jobs without an engine"),
    ]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()


async def _keep_looking(database: Database, settings: Settings) -> None:
    watch = Watch(stale_seconds=settings.stale_seconds, allowed=settings.unserved_seconds)
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        await went_well(partial(look, database, settings, watch), "looking for jobs without an engine")


async def look(
    database: Database, settings: Settings, watch: Watch, *, alone_seconds: float = ALONE_SECONDS
) -> None:
    """Fail the jobs that have waited too long for an engine or are over their deadline.

    Where no supervisor lives, jobs that were in progress are queued again, so that they wait with the others.
    Raises DatabaseUnavailable.
    """
    for video in [*await watch.fail(database), *await reconcile.fail_overdue(database)]:
        log.warning("queued job failed", video_id=video.id, reason=video.error_code)
        metrics.failed_in_line(video.error_code)
    if watch.alone_seconds < alone_seconds:
        return
    store = MediaStore(settings.media_directory)
    for video in await reconcile.settle_lost(
        database, max_attempts=settings.max_attempts, stale_seconds=settings.stale_seconds, run_id=None
    ):
        log.warning("lost job settled", video_id=video.id, state=video.state.value)
        if video.state is VideoState.CANCELLED:
            metrics.cancelled_in_line()
        elif video.state.final:
            metrics.failed_in_line(video.error_code)
        await asyncio.to_thread(store.remove_attempt, video.id, video.attempt)
