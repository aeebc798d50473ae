"""What is said to be finished is on the disk: content, then name, then directory, and only then the word."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import socket
import stat
from pathlib import Path

import msgspec
import pytest

from faulty import REQUEST
from framekeeper.engine import protocol
from framekeeper.engine.backends.fault import gradient
from framekeeper.engine.channel import Channel
from framekeeper.engine.publish import publish
from framekeeper.engine.worker import Worker
from framekeeper.media.inspect import inspect

FRAMES = gradient(9, 64, 64)


def order(directory: Path) -> protocol.Generate:
    return protocol.Generate(
        job="video_1", attempt=1, directory=str(directory), **msgspec.structs.asdict(REQUEST)
    )


class Disk:
    """Notes what is brought to the disk and renamed; `broken` is a directory whose names cannot be."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.did: list[tuple[str, Path]] = []
        self.broken: tuple[Path, int] | None = None
        really_sync, really_rename = os.fsync, Path.replace

        def fsync(descriptor: int) -> None:
            path = Path(f"/proc/self/fd/{descriptor}").readlink()
            if self.broken is not None and stat.S_ISDIR(os.fstat(descriptor).st_mode):
                broken, number = self.broken
                if path == broken:
                    raise OSError(number, os.strerror(number))
            really_sync(descriptor)
            self.did.append(("sync", path))

        def replace(part: Path, target: Path) -> Path:
            self.did.append(("rename", target))
            return really_rename(part, target)

        monkeypatch.setattr(os, "fsync", fsync)
        monkeypatch.setattr(Path, "replace", replace)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def test_content_comes_to_the_disk_before_the_name_and_the_directory_last(disk: Disk, tmp_path: Path) -> None:
    home = tmp_path / "media" / "video_1"
    published = publish(order(home), FRAMES, inspect(FRAMES), decode=False)
    files = [home / "1.mp4", home / "1.jpg", home / "1.sheet.jpg"]
    assert (published.video, published.thumbnail) == ("1.mp4", "1.jpg")
    expected = []
    for file in files:
        expected += [("sync", file.with_name(file.name + ".part")), ("rename", file)]
    assert disk.did == [*expected, ("sync", home), ("sync", home.parent)]


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP])
def test_a_file_system_that_cannot_bring_directories_to_the_disk_still_takes_videos(
    disk: Disk, tmp_path: Path, number: int
) -> None:
    home = tmp_path / "video_1"
    disk.broken = (home, number)
    publish(order(home), FRAMES, inspect(FRAMES), decode=False)
    assert (home / "1.mp4").is_file()


@pytest.mark.parametrize("level", ["its directory", "the directory of that"])
async def test_a_worker_whose_names_did_not_reach_the_disk_does_not_say_that_it_is_done(
    disk: Disk, tmp_path: Path, level: str
) -> None:
    home, script = tmp_path / "media" / "video_1", tmp_path / "script.json"
    disk.broken = (home if level == "its directory" else home.parent, errno.EIO)
    script.write_text(json.dumps({"step_seconds": 0}))
    ours, theirs = socket.socketpair()
    parent = await Channel.over(ours, protocol.decode_from_child)
    running = asyncio.create_task(Worker(await Channel.over(theirs, protocol.decode_from_parent)).run())
    parent.send(protocol.Load(backend="fault", model=str(script), options={}))
    said: list[protocol.FromChild | None] = []
    async with asyncio.timeout(20):
        while not isinstance(said[-1:] and said[-1], protocol.Loaded):
            said.append(await parent.receive())
        parent.send(order(home))
        while not isinstance(said[-1], protocol.Done | protocol.Failed):
            said.append(await parent.receive())
    parent.close()
    await running
    end = said[-1]
    assert isinstance(end, protocol.Failed)
    assert (end.kind, end.healthy) == ("storage", True)
    assert os.strerror(errno.EIO) in end.message
