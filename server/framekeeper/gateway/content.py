"""The finished files as they lie in the media directory, with ranges and conditions."""

from __future__ import annotations

import os
import re
from contextlib import ExitStack
from pathlib import Path
from stat import S_ISREG
from typing import Any, BinaryIO, Literal

from fastapi import Request
from fastapi.responses import FileResponse, Response
from starlette.datastructures import MutableHeaders
from starlette.types import Receive, Scope, Send

from framekeeper.errors import ContentLost, StorageFull, VideoExpired, VideoNotFinished
from framekeeper.gateway.errors import RangeNotSatisfiable
from framekeeper.jobs.video import Video, VideoState
from framekeeper.media.store import MediaStore, sheet_name

Variant = Literal["video", "thumbnail", "spritesheet"]
MEDIA_TYPES: dict[Variant, str] = {
    "video": "video/mp4",
    "thumbnail": "image/jpeg",
    "spritesheet": "image/jpeg",
}
RANGE = re.compile(r"\s*([0-9]{0,18})\s*-\s*([0-9]{0,18})\s*", re.ASCII)


def locate(media: Path, video: Video, variant: Variant) -> Path:
    """The file of a completed video. Raises VideoNotFinished, VideoExpired or ContentLost.

    Both parts of its name come from the database, and a link that leads out of the directory is not followed.
    """
    if video.state is VideoState.EXPIRED:
        raise VideoExpired(
            f"The {variant} of {video.id} has expired: its files were removed.", param="video_id"
        )
    if video.state is not VideoState.COMPLETED:
        reasons = {
            VideoState.FAILED: f"failed ({video.error_code}): {video.error_message}",
            VideoState.CANCELLED: "was cancelled",
        }
        reason = reasons.get(video.state, f"is {video.state} ({video.progress} %), so it has no content yet")
        raise VideoNotFinished(f"The video {video.id} {reason.rstrip('.')}.", param="video_id")
    name = video.thumbnail_file if variant == "thumbnail" else video.video_file
    if name and variant == "spritesheet":
        name = sheet_name(name)
    root = Path(os.path.realpath(media))
    path = Path(os.path.realpath(root / video.id / (name or "")))
    if not name or not path.is_relative_to(root / video.id) or not path.is_file():
        raise ContentLost(f"The {variant} of {video.id} was made, but its file is gone.", param="video_id")
    return path


class OpenedFile(FileResponse):
    """A file that was opened before its answer began: who deletes it meanwhile cuts no download."""

    def __init__(self, file: BinaryIO, **options: Any) -> None:
        self._file = file
        # A name of the open file itself, also when it has no other any more (man 5 proc_pid_fd).
        super().__init__(f"/proc/self/fd/{file.fileno()}", stat_result=os.fstat(file.fileno()), **options)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        with self._file:
            await super().__call__(scope, receive, send)


def file_response(request: Request, path: Path, video: Video, variant: Variant) -> Response:
    """The file, a part of it, or 304. Raises RangeNotSatisfiable or ContentLost."""
    # The same from every gateway, whatever its copy's modification time: a file is never rewritten.
    etag = f'"{video.id}-{video.attempt}-{variant}"'
    known = request.headers.get("if-none-match", "")
    with ExitStack() as closing:
        try:
            # Not blocking: a pipe in its place would wait for a writer.
            file = closing.enter_context(open(path, "rb", opener=_opener))
        except OSError:
            file = None
        if file is None or not S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ContentLost(
                f"The {variant} of {video.id} was made, but its file is gone.", param="video_id"
            )
        if known == "*" or etag in [tag.strip().removeprefix("W/") for tag in known.split(",")]:
            return Response(status_code=304, headers={"ETag": etag})
        response = OpenedFile(
            file,
            media_type=MEDIA_TYPES[variant],
            filename=f"{video.id}{path.suffix}",
            content_disposition_type="inline",
            headers={"ETag": etag, "Cache-Control": "private, no-cache"},
        )
        size = int(response.headers["content-length"])
        _settle_range(request, size, {etag, response.headers["last-modified"]})
        closing.pop_all()
        return response


def _opener(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW)


def _settle_range(request: Request, size: int, validators: set[str]) -> None:
    """Leave only a Range header that FileResponse will satisfy; its own refusals are plain text."""
    given = request.headers.get("range")
    if given is None:
        return
    headers = MutableHeaders(scope=request.scope)
    if request.headers.get("if-range", next(iter(validators))) not in validators:
        del headers["range"]
        return
    unit, _, ranges = given.partition("=")
    matches = [RANGE.fullmatch(one) for one in ranges.split(",")]
    # A header that is malformed counts as absent (RFC 9110, 14.2), and so does a multitude of ranges.
    parts = [(match[1], match[2]) for match in matches if match and (match[1] or match[2])]
    backwards = any(first and last and int(last) < int(first) for first, last in parts)
    if unit.strip().lower() != "bytes" or len(parts) != len(matches) or backwards or len(parts) > 10:
        del headers["range"]
        return
    fitting = [
        f"{first}-{last}"
        for first, last in parts
        if (int(first) < size if first else int(last) > 0 and size > 0)
    ]
    if not fitting:
        raise RangeNotSatisfiable(size)
    headers["range"] = f"bytes={','.join(fitting)}"


def require_space(media: Path, least: int, needed: int = 0) -> None:
    """Raise StorageFull when less than `least` bytes would stay free once `needed` more are written."""
    try:
        free = MediaStore(media).free_bytes()
    except OSError as error:
        raise StorageFull(
            f"The media directory cannot be looked at ({error.strerror}): check FRAMEKEEPER_MEDIA.",
            retry_after=60,
        ) from error
    if free < least + needed:
        raise StorageFull(
            f"The media directory has {free >> 20} MiB free. This video and those that wait need "
            f"{needed >> 20} MiB, and {least >> 20} stay free: free some space, delete videos, or lower "
            "FRAMEKEEPER_MIN_FREE_BYTES.",
            retry_after=60,
        )


def remove_files(media: Path, video_id: str) -> None:
    """Remove all files of a deleted video; a link in their place is left alone."""
    MediaStore(media).remove(video_id)
