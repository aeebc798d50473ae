"""Where a gateway's processes keep their metrics: mapped files, one set a process.

In memory where there is some, since a write to a mapped file on a full disk ends the process by SIGBUS. The
directory has a random name; a link under `var` says where it is, so that what a killed gateway left is found.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from framekeeper.settings import Settings

MEMORY = Path("/dev/shm")  # noqa: S108
PREFIX = "framekeeper-metrics-"
#: Stands for a process's number in the names of the files that hold the sums of those that ended.
ENDED = "ended"


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


def retire(directory: Path, alive: Collection[int]) -> bool:
    """Add up the counters and histograms of processes that ended in one file each, so that a gateway whose
    workers come and go does not keep a set of files for each. Gauges end with their process.

    False where a scrape is being answered right now: the files stay, and count, until the next call. Raises
    OSError.
    """
    from prometheus_client.mmap_dict import MmapedDict  # noqa: PLC0415  (asks for the directory when imported)

    with _locked(directory, fcntl.LOCK_EX | fcntl.LOCK_NB) as got:
        if not got:
            return False
        for kind in ("counter", "histogram"):
            whole = directory / f"{kind}_{ENDED}.db"
            ended = [
                file
                for file in directory.glob(f"{kind}_*.db")
                if file != whole and _process(file) not in alive
            ]
            if not ended:
                continue
            sums: dict[str, tuple[float, float]] = {}
            for file in (whole, *ended) if whole.exists() else ended:
                values = MmapedDict.read_all_values_from_file(str(file))  # type: ignore[no-untyped-call]
                for key, value, at, _ in values:
                    before, last = sums.get(key, (0.0, 0.0))
                    sums[key] = before + value, max(last, at)
            # Not `.db` until it is whole: this process may end here.
            new = whole.with_suffix(".new")
            new.unlink(missing_ok=True)
            written = MmapedDict(str(new))  # type: ignore[no-untyped-call]
            for key, (value, at) in sums.items():
                written.write_value(key, value, at)  # type: ignore[no-untyped-call]
            written.close()  # type: ignore[no-untyped-call]
            for file in ended:
                file.unlink()
            new.replace(whole)
    return True


@contextmanager
def read(directory: Path) -> Iterator[None]:
    """Keep files as they are while they are read."""
    with _locked(directory, fcntl.LOCK_SH):
        yield


@contextmanager
def _locked(directory: Path, how: int) -> Iterator[bool]:
    lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(lock, how)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(lock)


def _process(file: Path) -> int:
    number = file.stem.rpartition("_")[2]
    return int(number) if number.isdecimal() else 0


def _link(settings: Settings) -> Path:
    # Several gateways may share `var`.
    return settings.run_directory / f"prometheus-{settings.host}-{settings.port}"
