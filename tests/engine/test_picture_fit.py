"""A stored picture becomes one of the video's size, or a refusal that is no fault of the engine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from framekeeper.engine.backends.backend import RequestRefused
from framekeeper.engine.picture import drawn, fitted

RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)


def stripes(path: Path, *, across: bool) -> Path:
    """Red, green and blue, 30 pixels each, beside or below each other; the other side has 30."""
    row = np.repeat(np.array([RED, GREEN, BLUE], np.uint8), 30, axis=0)
    whole = np.broadcast_to(row, (30, 90, 3)) if across else np.broadcast_to(row[:, None], (90, 30, 3))
    Image.fromarray(np.ascontiguousarray(whole)).save(path)
    return path


@pytest.mark.parametrize("across", [True, False])
def test_a_picture_of_other_proportions_covers_the_frame_and_loses_both_ends(
    tmp_path: Path, across: bool
) -> None:
    picture = fitted(stripes(tmp_path / "a.png", across=across), 64, 64)
    assert (picture.shape, picture.dtype) == ((64, 64, 3), np.uint8)
    # Lanczos' filter rings at the edges of the stripe; its middle is what it was.
    assert np.abs(picture[16:48, 16:48].astype(int) - GREEN).max() <= 8


def test_a_picture_of_the_same_proportions_keeps_its_edges(tmp_path: Path) -> None:
    picture = fitted(stripes(tmp_path / "a.png", across=True), 96, 32)
    for left, colour in ((4, RED), (40, GREEN), (72, BLUE)):
        assert np.abs(picture[:, left : left + 16].astype(int) - colour).max() <= 8


def test_a_picture_of_the_right_size_is_not_touched(tmp_path: Path) -> None:
    picture = drawn(48, 32)
    Image.fromarray(picture).save(tmp_path / "a.png")
    assert np.array_equal(fitted(tmp_path / "a.png", 48, 32), picture)


def test_a_missing_picture_is_the_requests_fault_and_names_no_path(tmp_path: Path) -> None:
    with pytest.raises(RequestRefused, match="no longer there") as refused:
        fitted(tmp_path / "video_1.png", 64, 64)
    assert refused.value.param == "input_reference"
    assert str(tmp_path) not in str(refused.value)


def damaged(path: Path, how: str) -> None:
    whole = stripes(path, across=True).read_bytes()
    match how:
        case "empty":
            path.write_bytes(b"")
        case "cut":
            path.write_bytes(whole[: len(whole) // 2])
        case "text":
            path.write_text("<svg/>")
        case "jpeg":
            Image.new("RGB", (9, 9)).save(path, format="JPEG")
        case "broken check sum":
            at = whole.index(b"IDAT") + 8
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        case "directory":
            path.unlink()
            path.mkdir()


@pytest.mark.parametrize("how", ["empty", "cut", "text", "jpeg", "broken check sum", "directory"])
def test_an_unreadable_picture_is_the_requests_fault_and_names_no_path(tmp_path: Path, how: str) -> None:
    damaged(tmp_path / "video_1.png", how)
    with pytest.raises(RequestRefused, match="cannot be read") as refused:
        fitted(tmp_path / "video_1.png", 64, 64)
    assert refused.value.param == "input_reference"
    assert str(tmp_path) not in str(refused.value)


def test_a_picture_larger_than_any_gateway_stores_is_refused_before_it_is_decoded(tmp_path: Path) -> None:
    Image.new("1", (9_000, 8_000)).save(tmp_path / "a.png")
    with pytest.raises(RequestRefused, match="9000x8000 pixels"):
        fitted(tmp_path / "a.png", 64, 64)


def test_the_warm_ups_picture_differs_from_place_to_place() -> None:
    picture = drawn(64, 32)
    assert (picture.shape, picture.dtype) == ((32, 64, 3), np.uint8)
    assert all(picture[..., colour].std() > 20 for colour in range(3))
