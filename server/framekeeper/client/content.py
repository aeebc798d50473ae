"""The finished file: whole under its name, or not there at all."""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO

import httpx

from framekeeper.client.service import ClientError, Passing, Patience, Service


def require_place(target: Path, *, over: bool = False) -> None:
    """Raise ClientError when nothing could be written there, before an engine works for nothing.

    A file that is there is kept, unless it may be written `over`.
    """
    directory = target.parent
    if target.is_dir():
        raise ClientError(f"-o {target} is a directory: name a file in it.", 2)
    if target.exists() and not over:
        raise ClientError(f"{target} is there already: name another file with -o, or add --force.", 2)
    if not directory.is_dir():
        raise ClientError(f"-o {target}: there is no directory {directory}: make it, or name another.", 2)
    if not os.access(directory, os.W_OK | os.X_OK):
        raise ClientError(f"-o {target}: {directory} is not writable: name another directory.", 2)


def download(service: Service, video_id: str, target: Path) -> None:
    """Fetch a video's file to `target`, over what is there. Raises ClientError."""
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    patience = Patience(service)
    try:
        with part.open("wb") as file:
            while True:
                try:
                    _fetch(service, video_id, file)
                    break
                except (httpx.TransportError, Passing) as error:
                    patience.wait(error)
                    file.seek(0)
                    file.truncate()
            file.flush()
            os.fsync(file.fileno())
        part.replace(target)
    except OSError as error:
        raise ClientError(f"{target} cannot be written: {error.strerror or error}.") from None
    finally:
        part.unlink(missing_ok=True)


def _fetch(service: Service, video_id: str, file: IO[bytes]) -> None:
    with service.stream(f"/v1/videos/{video_id}/content") as answer:
        for piece in answer.iter_bytes():
            file.write(piece)
        expected = answer.headers.get("content-length")
    if expected is not None and file.tell() != int(expected):
        raise httpx.ReadError("the connection was lost before the end of the file")
