"""One engine per device on a host: a lock file per device, held for as long as an engine may use it.

The files lie in a directory that all containers of a host share (a volume), named by the device's UUID, so
that two engines cannot take the same card whatever their containers call it. The lock is the kernel's
(flock): it goes when its holder's process goes, by whatever death, and a file that is left behind locks
nothing. The file says who holds it, for the refusal only. flock works across containers on a local file
system; a network file system would lock cards of other hosts with the same CPU device names.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

_SAFE = re.compile(r"[A-Za-z0-9._-]{1,120}")


class DeviceHeld(Exception):
    """Another engine holds a device; the message names the device and its holder."""

    def __init__(self, device: str, holder: str) -> None:
        super().__init__(
            f"device {device} is held by {holder}; stop that engine, or give this one other devices "
            "(devices.uuids of the profile)"
        )
        self.device = device
        self.holder = holder


@dataclass
class DeviceLock:
    """The locks of one device group. Use as a context manager, or call `acquire` and `release`.

    `owner` is a word for people, such as host id and group. Raises DeviceHeld from `acquire` when any of the
    devices is taken; then none is held. Whoever starts workers must keep the lock while they live: the files
    are not inherited, so a worker that outlives the lock's process holds its card without one.
    """

    directory: Path
    devices: Sequence[str]
    owner: str
    _files: list[TextIO] = field(default_factory=list, init=False, repr=False)

    def acquire(self) -> None:
        """Take all devices or none. Raises DeviceHeld, and OSError when the directory cannot be used."""
        if self._files:
            return
        self.directory.mkdir(parents=True, exist_ok=True)
        # In one order everywhere, so that two groups that want the same devices cannot each get half.
        for device in sorted(set(self.devices)):
            try:
                self._files.append(_take(self.directory, device, self.owner))
            except BaseException:
                self.release()
                raise

    def release(self) -> None:
        """Give the devices back; harmless when none is held."""
        while self._files:
            self._files.pop().close()

    def __enter__(self) -> DeviceLock:
        self.acquire()
        return self

    def __exit__(self, *_exception: object) -> None:
        self.release()


def lock_path(directory: Path, device: str) -> Path:
    """File of a device. Raises ValueError for a name that is no UUID and no test device."""
    if _SAFE.fullmatch(device) is None:
        raise ValueError(f"{device!r} is not the name of a device")
    return directory / f"{device}.lock"


def _take(directory: Path, device: str, owner: str) -> TextIO:
    descriptor = os.open(lock_path(directory, device), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    file = os.fdopen(descriptor, "r+", encoding="utf-8")
    try:
        # Containers run as different users; the volume's lock must be theirs too, whatever the umask.
        with contextlib.suppress(PermissionError):
            os.fchmod(descriptor, 0o666)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = _describe(file.read())
        file.close()
        raise DeviceHeld(device, holder) from None
    except BaseException:
        file.close()
        raise
    file.seek(0)
    file.truncate()
    record = {"owner": owner, "pid": os.getpid(), "host": os.uname().nodename, "since": int(time.time())}
    file.write(json.dumps(record))
    file.flush()
    return file


def _describe(text: str) -> str:
    try:
        record = json.loads(text)
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record["since"]))
        return f"{record['owner']} (pid {record['pid']} in {record['host']}, since {since})"
    except (ValueError, KeyError, TypeError):
        return "another process that has not said who it is"
