"""Files that browsers play, complete or absent."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
import pytest

from framekeeper.engine.backends.fault import gradient
from framekeeper.media.encode import read_video, write_sheet, write_thumbnail, write_video


def test_video_has_the_codec_size_rate_and_frames_that_were_asked_for(tmp_path: Path) -> None:
    frames = gradient(17, 96, 160)
    size = write_video(frames, 8, tmp_path / "1.mp4")
    assert size == (tmp_path / "1.mp4").stat().st_size
    with av.open(str(tmp_path / "1.mp4")) as container:
        stream = container.streams.video[0]
        context = stream.codec_context
        assert (context.name, context.pix_fmt, stream.width, stream.height) == ("h264", "yuv420p", 160, 96)
        assert (stream.average_rate, stream.frames) == (8, 17)
        assert float(stream.duration * stream.time_base) == pytest.approx(17 / 8)
        assert (context.colorspace, context.color_range) == (1, 1)


def test_decoded_frames_are_those_that_were_written(tmp_path: Path) -> None:
    frames = gradient(9, 96, 160)
    write_video(frames, 16, tmp_path / "1.mp4")
    error = np.abs(read_video(tmp_path / "1.mp4").astype(np.float32) / 255 - frames)
    assert error.mean() < 0.01


def test_the_index_comes_before_the_pictures(tmp_path: Path) -> None:
    write_video(gradient(9, 64, 64), 8, tmp_path / "1.mp4")
    raw = (tmp_path / "1.mp4").read_bytes()
    assert 0 < raw.index(b"moov") < raw.index(b"mdat")


def test_a_video_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    frames = np.zeros((3, 64, 64, 3), dtype=np.float32)
    with pytest.raises(OSError):  # noqa: PT011  whichever the system gives
        write_video(frames, 8, tmp_path / "absent" / "1.mp4")
    with pytest.raises(Exception, match=r"."):
        write_video(frames[:, :63], 8, tmp_path / "1.mp4")  # odd height: no such yuv420p
    assert list(tmp_path.iterdir()) == []


def test_values_outside_the_range_are_clipped_not_wrapped(tmp_path: Path) -> None:
    frames = np.full((5, 64, 64, 3), 1.5, dtype=np.float32)
    frames[:, :32] = -0.5
    write_video(frames, 8, tmp_path / "1.mp4")
    decoded = read_video(tmp_path / "1.mp4")
    assert decoded[:, 40:].min() > 240
    assert decoded[:, :24].max() < 15


@pytest.mark.parametrize(("height", "width", "expected"), [(64, 64, (64, 64)), (720, 1280, (480, 270))])
def test_thumbnail_is_a_small_jpeg(
    tmp_path: Path, height: int, width: int, expected: tuple[int, int]
) -> None:
    write_thumbnail(gradient(1, height, width)[0], tmp_path / "1.jpg")
    assert (tmp_path / "1.jpg").read_bytes()[:2] == b"\xff\xd8"
    with av.open(str(tmp_path / "1.jpg")) as container:
        stream = container.streams.video[0]
        assert (stream.width, stream.height) == expected


@pytest.mark.parametrize(
    ("frames", "expected"), [(1, (160, 90)), (4, (640, 90)), (9, (800, 180)), (81, (800, 450))]
)
def test_sheet_has_frames_from_first_to_last_by_rows(
    tmp_path: Path, frames: int, expected: tuple[int, int]
) -> None:
    # Frame by frame brighter, so that a cell tells which one it is.
    video = np.empty((frames, 180, 320, 3), dtype=np.float32)
    video[:] = np.linspace(0.1, 0.9, frames)[:, None, None, None]
    write_sheet(video, tmp_path / "1.sheet.jpg")
    sheet = read_video(tmp_path / "1.sheet.jpg")[0]
    assert (sheet.shape[1], sheet.shape[0]) == expected
    cells = [
        sheet[90 * row + 45, 160 * column + 80].mean() / 255
        for row in range(expected[1] // 90)
        for column in range(expected[0] // 160)
    ][: min(frames, 25)]
    assert cells == pytest.approx(
        list(np.linspace(0.1, 0.9, frames)[np.linspace(0, frames - 1, len(cells)).round().astype(int)]),
        abs=0.02,
    )
    assert list(tmp_path.iterdir()) == [tmp_path / "1.sheet.jpg"]
