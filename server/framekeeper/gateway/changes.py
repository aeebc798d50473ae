"""What happens to videos, as it happens: one connection a process listens, whoever follows a video shares it.

The database tells each change of a row (migration 0004). A connection that was lost has missed some, so every
followed row is read again after it, and now and then without a reason.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from functools import partial

import psycopg
import structlog

from framekeeper.database.pool import UNAVAILABLE, Database
from framekeeper.errors import VideoNotFound
from framekeeper.jobs import lookup
from framekeeper.jobs.video import Video
from framekeeper.round import went_well

log = structlog.get_logger(__name__)

CHANNEL = "framekeeper_videos"
#: A followed row is read again after so long, whether or not a change was told.
REREAD_SECONDS = 5.0
#: Between two tries to listen.
RECONNECT_SECONDS = 1.0


class Feed:
    """One followed video: its newest row, read once for all who follow it."""

    def __init__(self, video_id: str) -> None:
        self.video_id = video_id
        #: None once the row is gone.
        self.video: Video | None = None
        self.read = 0
        self.followers = 0
        self.dirty = asyncio.Event()
        self.news = asyncio.Condition()
        self.keeping: asyncio.Task[None] | None = None

    async def newer_than(self, read: int, seconds: float) -> None:
        """Wait until the row was read more often than this, at most so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds), self.news:
                await self.news.wait_for(lambda: self.read > read)

    async def keep(self, database: Database) -> None:
        """Read the row whenever it may have changed, for as long as it may change."""
        while True:
            self.dirty.clear()
            if not await went_well(partial(self._read, database), "reading a followed video"):
                await asyncio.sleep(RECONNECT_SECONDS)
                continue
            async with self.news:
                self.read += 1
                self.news.notify_all()
            if self.video is None:
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.dirty.wait(), REREAD_SECONDS)

    async def _read(self, database: Database) -> None:
        try:
            self.video = await lookup.find(database, self.video_id)
        except VideoNotFound:
            self.video = None


class Changes:
    """One a process."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._feeds: dict[str, Feed] = {}
        self._listening: asyncio.Task[None] | None = None

    async def find(self, video_id: str, *, sees: str | None) -> Video:
        """As lookup.find; no query where the video is followed, for a crowd comes for one video at once."""
        feed = self._feeds.get(video_id)
        if feed is None or feed.video is None or (sees is not None and feed.video.owner != sees):
            return await lookup.find(self._database, video_id, sees=sees)
        return feed.video

    async def follow(self, video_id: str, *, every: float) -> AsyncGenerator[Video | None]:
        """The video as it is now, then again on every change and at least every `every` seconds.

        None, and the end, when the row is gone. The caller ends it otherwise.
        """
        if self._listening is None or self._listening.done():
            self._listening = asyncio.create_task(self._listen(), name="listen for changes")
        feed = self._feeds.get(video_id)
        if feed is None:
            feed = self._feeds[video_id] = Feed(video_id)
            feed.keeping = asyncio.create_task(feed.keep(self._database), name=f"follow {video_id}")
        feed.followers += 1
        seen = 0
        try:
            while True:
                await feed.newer_than(seen, every)
                seen = feed.read
                if seen:
                    yield feed.video
                    if feed.video is None:
                        return
        finally:
            feed.followers -= 1
            if not feed.followers and self._feeds.get(video_id) is feed:
                del self._feeds[video_id]
                if feed.keeping is not None:
                    feed.keeping.cancel()

    async def close(self) -> None:
        """Stop listening."""
        tasks = [self._listening, *(feed.keeping for feed in self._feeds.values())]
        running = [task for task in tasks if task is not None]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def _listen(self) -> None:
        while True:
            try:
                async with await psycopg.AsyncConnection.connect(
                    self._database.url,
                    autocommit=True,
                    connect_timeout=5,
                    application_name="framekeeper-changes",
                ) as connection:
                    await connection.execute(f"LISTEN {CHANNEL}")
                    self._all_dirty()
                    async for told in connection.notifies():
                        if (feed := self._feeds.get(told.payload)) is not None:
                            feed.dirty.set()
            except UNAVAILABLE as error:
                log.warning("listening for changes was interrupted", error=str(error).splitlines()[:1])
            self._all_dirty()
            await asyncio.sleep(RECONNECT_SECONDS)

    def _all_dirty(self) -> None:
        for feed in self._feeds.values():
            feed.dirty.set()
