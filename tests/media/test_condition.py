"""What is noticed of a media directory before a video is made for it."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from framekeeper.media.condition import Condition
from volume import mount, mounted

MIB = 1 << 20


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Path]:
    """A small volume of its own."""
    yield from mounted(tmp_path / "volume", 8 * MIB)


def said(condition: Condition) -> str:
    fault = condition.look()
    assert fault is not None
    return fault


def test_directory_that_is_there_or_can_be_made_is_fine_and_nothing_is_written(tmp_path: Path) -> None:
    assert Condition(tmp_path, MIB).look() is None
    assert Condition(tmp_path / "not" / "yet", MIB).look() is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("below", ["", "media"])
def test_file_in_its_place_is_told(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").touch()
    assert "a file is in its place" in said(Condition(tmp_path / "file" / below, 0))


def test_read_only_volume_is_told_and_one_that_can_be_written_again_is_fine(volume: Path) -> None:
    condition = Condition(volume, 0)
    assert condition.look() is None
    mount("-o", "remount,ro", str(volume))
    assert "is mounted read-only" in said(condition)
    mount("-o", "remount,rw", str(volume))
    assert condition.look() is None


def test_read_only_bind_mount_is_told(volume: Path, tmp_path: Path) -> None:
    place = volume / "place"
    place.mkdir()
    mount("--bind", str(place), str(place))
    mount("-o", "remount,bind,ro", str(place))
    try:
        assert "is mounted read-only" in said(Condition(place, 0))
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_full_volume_is_told_with_what_is_free(volume: Path) -> None:
    condition = Condition(volume, 4 * MIB)
    assert condition.look() is None
    (volume / "filler").write_bytes(b"x" * 6 * MIB)
    assert "has 2 MiB free, and 4 are needed" in said(condition)
    (volume / "filler").unlink()
    assert condition.look() is None


def test_volume_without_inodes_is_told(volume: Path) -> None:
    mount("-o", "remount,nr_inodes=3", str(volume))
    condition = Condition(volume, 0)
    assert condition.look() is None
    (volume / "a").touch()
    (volume / "b").touch()
    assert "no room for another file" in said(condition)


@pytest.mark.parametrize("below", ["", "media"])
def test_volume_that_was_unmounted_is_told_until_it_is_back(volume: Path, below: str) -> None:
    place = volume / below
    place.mkdir(exist_ok=True)
    condition = Condition(place, 0)
    assert condition.look() is None
    keeper = volume.parent / "keeper"
    keeper.mkdir()
    mount("--bind", str(volume), str(keeper))
    subprocess.run(["umount", str(volume)], check=True)
    assert "is on another file system than before" in said(condition)
    mount("--bind", str(keeper), str(volume))
    subprocess.run(["umount", "--lazy", str(keeper)], check=True)
    assert condition.look() is None


def test_directory_that_was_removed_and_made_anew_is_fine(tmp_path: Path) -> None:
    place = tmp_path / "media"
    place.mkdir()
    condition = Condition(place, 0)
    assert condition.look() is None
    place.rename(tmp_path / "old")
    assert condition.look() is None
    place.mkdir()
    assert condition.look() is None


def test_directory_of_somebody_else_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() == 0:  # may write everywhere
        monkeypatch.setattr(os, "access", lambda *_: False)
    else:
        tmp_path.chmod(0o500)
    assert "cannot be written by this user" in said(Condition(tmp_path, 0))


async def test_file_system_that_hangs_is_told_in_time_and_keeps_one_thread_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    released, looks = threading.Event(), []

    def hang(condition: Condition) -> None:
        looks.append(condition)
        released.wait(20)

    monkeypatch.setattr(Condition, "look", hang)
    condition = Condition(tmp_path, 0)
    try:
        for _ in range(3):
            fault = await condition.fault(0.05)
            assert fault is not None
            assert "has not answered for 0 s" in fault
        assert len(looks) == 1
        released.set()
        assert await condition.fault() is None
    finally:
        released.set()
