"""Files stay where they belong."""

from __future__ import annotations

from pathlib import Path

import pytest

from framekeeper.media.store import MediaStore


@pytest.mark.parametrize("video_id", ["..", "a/b", "../x", "/etc", "."])
def test_an_id_that_is_a_path_is_refused(tmp_path: Path, video_id: str) -> None:
    with pytest.raises(ValueError, match="not a video id"):
        MediaStore(tmp_path).directory(video_id).exists()


@pytest.mark.parametrize("name", ["../1.mp4", "a/1.mp4", "/etc/passwd", ".."])
def test_a_file_name_that_is_a_path_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="not a file name"):
        MediaStore(tmp_path).file("video_1", name)


def test_removing_an_attempt_keeps_the_others(tmp_path: Path) -> None:
    store = MediaStore(tmp_path)
    store.directory("video_1").mkdir()
    for name in ("1.mp4", "1.jpg", "1.mp4.part", "2.mp4", "12.mp4"):
        store.file("video_1", name).touch()
    store.remove_attempt("video_1", 1)
    assert sorted(p.name for p in (tmp_path / "video_1").iterdir()) == ["12.mp4", "2.mp4"]
    store.remove_attempt("video_1", 2)
    store.remove_attempt("video_1", 12)
    assert not (tmp_path / "video_1").exists()


def test_free_space_is_told_before_the_directory_exists(tmp_path: Path) -> None:
    assert MediaStore(tmp_path / "a" / "b").free_bytes() > 0
