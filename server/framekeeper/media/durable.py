"""Files that a power cut leaves whole and in their place, or not there at all."""

from __future__ import annotations

import errno
import os
from pathlib import Path

#: What file systems say that cannot do it for a directory, such as some network ones; PostgreSQL goes on, too
#: (fsync_fname in https://github.com/postgres/postgres/blob/master/src/common/file_utils.c).
_CANNOT = frozenset({errno.EBADF, errno.EINVAL, errno.ENOTSUP, errno.ENOSYS})


def rename(part: Path, path: Path) -> None:
    """Bring a file's content to the disk, then give it its name. Raises OSError.

    The name is not on the disk before `sync_directory` of its directory has returned.
    """
    descriptor = os.open(part, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    part.replace(path)


def sync_directory(directory: Path) -> None:
    """Bring the names in a directory to the disk. Raises OSError, except where that cannot be done."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _CANNOT:
            raise
    finally:
        os.close(descriptor)
