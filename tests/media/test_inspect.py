"""A picture is told from what is none."""

from __future__ import annotations

import numpy as np
import pytest

from framekeeper.engine.backends.fault import gradient
from framekeeper.media.inspect import inspect


def test_a_picture_has_no_fault() -> None:
    found = inspect(gradient(9, 64, 64))
    assert found.fault is None
    assert found.frames == 9
    assert found.motion > 0


def test_bytes_and_floats_are_judged_alike() -> None:
    frames = gradient(5, 64, 64)
    floats, integers = inspect(frames), inspect(np.rint(frames * 255).astype(np.uint8))
    assert integers.mean == pytest.approx(floats.mean, abs=0.005)
    assert integers.contrast == pytest.approx(floats.contrast, abs=0.005)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_one_value_that_is_not_finite_is_found(value: float) -> None:
    frames = gradient(9, 64, 64)
    frames[7, 3, 5, 1] = value
    assert "not finite" in (inspect(frames).fault or "")


@pytest.mark.parametrize(
    ("level", "word"), [(0.0, "black"), (0.01, "black"), (0.5, "constant"), (1.0, "constant")]
)
def test_flat_frames_are_found(level: float, word: str) -> None:
    assert word in (inspect(np.full((5, 64, 64, 3), level, dtype=np.float32)).fault or "")


def test_dark_but_real_frames_pass() -> None:
    assert inspect(gradient(5, 64, 64) * 0.1).fault is None


def test_no_frames_is_a_fault() -> None:
    assert inspect(np.zeros((0, 64, 64, 3), dtype=np.float32)).fault == "there are no frames"


def test_bytes_made_of_values_that_are_not_finite_are_refused() -> None:
    frames = np.random.default_rng(1).integers(0, 255, (5, 16, 16, 3), dtype=np.uint8)
    assert inspect(frames).fault is None
    assert "not finite" in str(inspect(frames, finite=False).fault)
