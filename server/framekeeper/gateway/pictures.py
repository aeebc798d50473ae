"""Pictures of requests on their way to the engines: written anew, and stored before their job's row is."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

from framekeeper.errors import DatabaseUnavailable, InvalidRequest, StorageFull
from framekeeper.jobs import reference
from framekeeper.jobs.admission import Admitted
from framekeeper.jobs.reference import Reference
from framekeeper.jobs.video import Video, VideoRequest
from framekeeper.media import durable, picture
from framekeeper.media.picture import PictureRefused
from framekeeper.media.store import INPUTS, MediaStore

#: One at a time in a process: decoding the largest picture takes 260 MB (see tests/media/test_picture.py).
_DECODER = ThreadPoolExecutor(max_workers=1, thread_name_prefix="picture")


async def resolved(bodies: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The fields of requests with their pictures found; costs nothing where there are none."""
    return [
        await asyncio.to_thread(reference.resolved, body) if reference.given(body) else body
        for body in bodies
    ]


def most_bytes(wanted: Sequence[Admitted]) -> int:
    """Bytes that the pictures of these jobs may take once they are stored."""
    return sum(
        picture.most_bytes(
            each.reference.width, each.reference.height, each.request.width, each.request.height
        )
        for each in wanted
        if each.reference is not None
    )


class Staged:
    """Pictures of the jobs of one request: files that no job has yet, until `publish`.

    A context that takes back what its block does not keep: files without a job, and those of jobs whose rows
    were rolled back. Where nobody knows whether they were, the sweep does it later (see retention.py).
    """

    def __init__(self, media: Path) -> None:
        self._store = MediaStore(media)
        self._parts: dict[int, Path] = {}
        self._published: list[str] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, _type: object, error: BaseException | None, _traceback: object) -> None:
        for part in self._parts.values():
            part.unlink(missing_ok=True)
        if isinstance(error, Exception) and not isinstance(error, DatabaseUnavailable):
            for video_id in self._published:
                self._store.remove_input(video_id)

    async def write(self, wanted: Sequence[Admitted], *, batch: bool = False) -> None:
        """Write the pictures of these jobs. Raises InvalidRequest for a damaged one, StorageFull."""
        loop = asyncio.get_running_loop()
        for number, each in enumerate(wanted):
            if each.reference is not None:
                where = f"requests[{number}]" if batch else ""
                await loop.run_in_executor(_DECODER, self._write, number, each.reference, each.request, where)

    def _write(self, number: int, given: Reference, request: VideoRequest, where: str) -> None:
        try:
            png = picture.rewritten(given.data, request.width, request.height)
        except PictureRefused as refused:
            message = f"{given.field} {refused}"
            raise InvalidRequest(
                f"{where}: {message}" if where else message,
                param=f"{where}.{given.field}" if where else given.field,
            ) from None
        directory = self._store.root / INPUTS
        part = self._parts[number] = directory / f".{uuid4().hex}.part"
        try:
            directory.mkdir(parents=True, exist_ok=True)
            with part.open("xb") as file:
                file.write(png)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise _not_stored(error) from error

    async def publish(self, videos: Sequence[Video]) -> None:
        """Give the files to the jobs, which are in the order that was written. Raises StorageFull.

        Afterwards they survive a power cut, as the rows that follow do.
        """
        if videos and self._parts:
            await asyncio.to_thread(self._publish, videos)

    def _publish(self, videos: Sequence[Video]) -> None:
        try:
            for number, part in list(self._parts.items()):
                video_id = videos[number].id
                part.replace(self._store.input(video_id))
                self._published.append(video_id)
                del self._parts[number]
            for changed in (self._store.root, self._store.root / INPUTS):
                durable.sync_directory(changed)
        except OSError as error:
            raise _not_stored(error) from error


def _not_stored(error: OSError) -> StorageFull:
    return StorageFull(
        f"The picture cannot be stored ({error.strerror}): check FRAMEKEEPER_MEDIA.", retry_after=60
    )
