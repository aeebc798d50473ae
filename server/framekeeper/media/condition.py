"""Whether a finished video could be stored now: asked before hours of a card are spent on one."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

#: A network file system that is away lets its callers wait for ever.
ANSWER_SECONDS = 3.0
_SETTING = "The media directory (FRAMEKEEPER_MEDIA)"


class Condition:
    """Of one media directory, as one program sees it. Nothing is written, so it costs next to nothing."""

    def __init__(self, root: Path, least_bytes: int) -> None:
        self._root, self._least_bytes = root, least_bytes
        #: Device and inode of the directory when it was first seen.
        self._known: tuple[int, int] | None = None
        self._asking: asyncio.Future[str | None] | None = None
        self._asked = 0.0

    async def fault(self, seconds: float = ANSWER_SECONDS) -> str | None:
        """A sentence that says what is wrong and what to do, or None. Also for one that does not answer."""
        # The answer to a question that nobody waits for any more may be old.
        if self._asking is None or self._asking.done():
            self._asked = time.monotonic()
            self._asking = asyncio.ensure_future(asyncio.to_thread(self.look))
        asking = self._asking  # one thread is enough to hang
        await asyncio.wait({asking}, timeout=seconds)
        if not asking.done():
            waited = time.monotonic() - self._asked
            return f"{_SETTING} has not answered for {waited:.0f} s: is its server there?"
        return asking.result()

    async def until_faulty(self, every_seconds: float) -> None:
        """Return once something is wrong."""
        while True:
            if await self.fault() is not None:
                return
            await asyncio.sleep(every_seconds)

    def look(self) -> str | None:
        """As `fault`, but waits for as long as the file system does."""
        try:
            return self._look()
        except OSError as error:
            return f"{_SETTING} cannot be looked at ({error.strerror}): check the volume that it is on."

    def _look(self) -> str | None:
        # It is made with the first video; until then, whatever it will be made in counts.
        nearest = next(each for each in (self._root, *self._root.parents) if os.path.lexists(each))
        if not nearest.is_dir():
            return f"{_SETTING} cannot be made: a file is in its place or above it. Move that away."
        status, system = nearest.stat(), os.statvfs(nearest)
        if self._known is not None and self._known[0] != status.st_dev:
            # A volume that comes back may have another number, but its root has the same inode.
            if nearest != self._root or self._known[1] != status.st_ino:
                return f"{_SETTING} is on another file system than before: mount its volume again."
        elif nearest == self._root:
            self._known = status.st_dev, status.st_ino
        if system.f_flag & os.ST_RDONLY:
            return f"{_SETTING} is mounted read-only: mount it so that it can be written."
        if not os.access(nearest, os.W_OK | os.X_OK):
            return f"{_SETTING} cannot be written by this user: change its owner or mode."
        free = system.f_bavail * system.f_frsize
        if free < self._least_bytes:
            return (
                f"{_SETTING} has {free >> 20} MiB free, and {self._least_bytes >> 20} are needed: delete "
                "videos, or enlarge the volume."
            )
        if system.f_files and not system.f_favail:
            return f"{_SETTING} has no room for another file (inodes): delete videos."
        return None
