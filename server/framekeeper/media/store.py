"""Where videos lie, one directory a job, files named by attempt; and the pictures that they start from."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

#: The directory of the pictures that jobs start from.
INPUTS = "inputs"
#: One of them below the media directory, for whatever id stands in the place of the star.
INPUT_FILE = f"{INPUTS}/*.png"


class MediaStore:
    """A directory of job directories. Ids and names come from the database, never from a client."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def directory(self, video_id: str) -> Path:
        """The job's directory, which need not exist."""
        if not _is_one_name(video_id):
            raise ValueError(f"not a video id: {video_id!r}")
        return self.root / video_id

    def file(self, video_id: str, name: str) -> Path:
        """A file of a job."""
        if not _is_one_name(name):
            raise ValueError(f"not a file name: {name!r}")
        return self.directory(video_id) / name

    def remove(self, video_id: str) -> None:
        """Remove all files of a job; a link in the place of its directory is left alone."""
        shutil.rmtree(self.directory(video_id), ignore_errors=True)
        self.remove_input(video_id)

    def input(self, video_id: str) -> Path:
        """The picture that a job starts from, which need not exist."""
        return self.root / INPUTS / f"{self.directory(video_id).name}.png"

    def inputs(self) -> list[Path]:
        """All of these pictures, and what was left of some that were being written."""
        try:
            return [path for path in (self.root / INPUTS).iterdir() if path.suffix in (".png", ".part")]
        except OSError:
            return []

    def remove_input(self, video_id: str) -> None:
        """Remove that picture."""
        # Whatever else is in its way lies in nobody's, and the sweep comes by again.
        with suppress(OSError):
            self.input(video_id).unlink()

    def remove_attempt(self, video_id: str, attempt: int) -> None:
        """Remove what one attempt left, finished or not."""
        directory = self.directory(video_id)
        for path in directory.glob(f"{attempt}.*"):
            path.unlink(missing_ok=True)
        try:
            directory.rmdir()
        except OSError:  # other attempts' files are in it, or it never existed
            return

    def free_bytes(self) -> int:
        """Space left for new videos."""
        existing = self.root
        while not existing.exists():
            existing = existing.parent
        return shutil.disk_usage(existing).free


def sheet_name(video_file: str) -> str:
    """The sheet of frames that lies beside a video."""
    return f"{Path(video_file).stem}.sheet.jpg"


def _is_one_name(text: str) -> bool:
    return text not in ("", ".", "..") and "/" not in text and "\0" not in text
