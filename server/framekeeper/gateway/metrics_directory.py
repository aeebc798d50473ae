"""Where a gateway's processes keep their metrics: mapped files, one set a process.

In memory where there is some, since a write to a mapped file on a full disk ends the process by SIGBUS. The
directory has a random name; a link under `var` says where it is, so that what a killed gateway left is found.
"""

from __future__ import annotations

import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from framekeeper.settings import Settings

MEMORY = Path("/dev/shm")  # noqa: S108
PREFIX = "framekeeper-metrics-"


def make(settings: Settings) -> Path:
    """A new directory. Raises OSError when there is no place for one."""
    link = _link(settings)
    try:
        directory = Path(tempfile.mkdtemp(prefix=PREFIX, dir=MEMORY))
    except OSError:
        link.mkdir(parents=True)
        return link
    with suppress(OSError):
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(directory)
    return directory


def remove(settings: Settings) -> None:
    """Remove the directory of the gateway with these settings, which is not running (any more)."""
    link = _link(settings)
    with suppress(OSError):
        if link.is_symlink():
            directory = link.readlink()
            link.unlink()
            if directory.parent == MEMORY and directory.name.startswith(PREFIX):
                shutil.rmtree(directory, ignore_errors=True)
        else:
            shutil.rmtree(link, ignore_errors=True)


def _link(settings: Settings) -> Path:
    # Several gateways may share `var`.
    return settings.run_directory / f"prometheus-{settings.host}-{settings.port}"
