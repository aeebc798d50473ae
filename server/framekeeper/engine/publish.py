"""Turning an attempt's frames into its files."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from framekeeper.media import durable
from framekeeper.media.encode import read_video, write_sheet, write_thumbnail, write_video
from framekeeper.media.inspect import Inspection, inspect
from framekeeper.media.store import sheet_name

if TYPE_CHECKING:
    import numpy as np

    from framekeeper.engine.protocol import Generate


@dataclass(frozen=True, kw_only=True)
class Published:
    """The files of an attempt; names are relative to the job's directory. `decoded` is what a check found."""

    video: str
    thumbnail: str
    bytes: int
    seconds: float
    inspection: Inspection
    decoded: dict[str, Any] | None


def publish(
    request: Generate, frames: np.ndarray[Any, Any], inspection: Inspection, *, decode: bool
) -> Published:
    """Write MP4, thumbnail and sheet of frames, named by attempt. Raises OSError when they cannot be written.

    When it returns they are on the disk under their names: only then may a row say so.

    With `decode` the file is read back and inspected, as the warm-up's proof of the whole path.
    """
    started = time.monotonic()
    directory = Path(request.directory)
    directory.mkdir(parents=True, exist_ok=True)
    video, thumbnail = f"{request.attempt}.mp4", f"{request.attempt}.jpg"
    size = write_video(frames, request.fps, directory / video)
    write_thumbnail(frames[len(frames) // 2], directory / thumbnail)
    write_sheet(frames, directory / sheet_name(video))
    for changed in (directory, directory.parent):  # the job's directory may be new itself
        durable.sync_directory(changed)
    decoded = None
    if decode:
        found = inspect(read_video(directory / video))
        fault = found.fault
        if found.frames != len(frames):
            fault = f"there are {found.frames} frames instead of {len(frames)}"
        decoded = found.facts() | {"fault": fault}
    return Published(
        video=video,
        thumbnail=thumbnail,
        bytes=size,
        seconds=time.monotonic() - started,
        inspection=inspection,
        decoded=decoded,
    )
