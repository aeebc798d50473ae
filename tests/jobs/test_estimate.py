"""How long a job will take: what was measured, or what the work says."""

from __future__ import annotations

from typing import Any

import pytest

from framekeeper.jobs.estimate import cost, estimate
from framekeeper.jobs.measured import Measured

SMALL, LARGE = (64, 64, 9), (128, 128, 49)


def measured(shape: tuple[int, int, int], seconds: float, **changes: Any) -> Measured:
    width, height, frames = shape
    values = {"profile": "p", "steps": 6, "runs": 3, **changes}
    return Measured(width=width, height=height, num_frames=frames, seconds=seconds, **values)


def test_nothing_measured_is_not_known() -> None:
    assert estimate(SMALL, 6, []) is None


def test_the_same_shape_and_steps_are_taken_as_measured() -> None:
    found = [measured(SMALL, 2.0), measured(LARGE, 40.0), measured(SMALL, 3.0, steps=12)]
    assert estimate(SMALL, 6, found) == 2.0


def test_several_profiles_give_their_median_and_one_its_own() -> None:
    found = [measured(SMALL, each, profile=f"p{each:g}") for each in (1.0, 2.0, 9.0)]
    assert estimate(SMALL, 6, found) == 2.0
    assert estimate(SMALL, 6, found, profile="p9") == 9.0
    assert estimate(SMALL, 6, found, profile="new") == 2.0


def test_other_steps_are_scaled_in_proportion_where_only_one_was_measured() -> None:
    assert estimate(SMALL, 12, [measured(SMALL, 2.0)]) == pytest.approx(4.0)


def test_what_does_not_grow_with_the_steps_is_told_apart_once_two_were_measured() -> None:
    found = [measured(SMALL, 1.0 + 0.5 * steps, steps=steps) for steps in (2, 10)]
    assert estimate(SMALL, 6, found) == pytest.approx(4.0)
    assert estimate(SMALL, 50, found) == pytest.approx(26.0)


def test_attention_grows_with_the_square_of_the_tokens() -> None:
    frames = 81
    twice = cost(1280, 720, frames, 40) / cost(640, 720, frames, 40)
    assert 2 < twice < 4
    assert cost(64, 64, 9, 40) / cost(32, 64, 9, 40) == pytest.approx(2, rel=0.01)


def test_measurements_that_contradict_each_other_never_give_less_than_nothing() -> None:
    found = [measured(SMALL, 9.0), measured(LARGE, 1.0)]
    assert estimate((64, 64, 1), 6, found) > 0  # type: ignore[operator]
    assert estimate((128, 128, 81), 6, found) > 0  # type: ignore[operator]
