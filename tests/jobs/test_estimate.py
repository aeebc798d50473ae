"""How long a job will take: what was measured, or what the work says."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

import pytest

from framekeeper.jobs.estimate import estimate
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


def test_one_measurement_is_scaled_by_the_work_of_a_large_model() -> None:
    # An H200 (docs/verified.md): 5.14 s a step, 0.9 s of decoding, 2 of encoding at 832x480; 19.95, 2.7, 6.
    found = [measured((832, 480, 81), 40 * 5.14 + 2.9, steps=40)]
    assert estimate((832, 480, 81), 6, found) == pytest.approx(6 * 5.14 + 2.9, rel=0.05)
    assert estimate((1280, 720, 81), 40, found) == pytest.approx(40 * 19.95 + 8.7, rel=0.05)


def test_what_does_not_grow_with_the_steps_is_told_apart_once_two_were_measured() -> None:
    found = [measured(SMALL, 1.0 + 0.5 * steps, steps=steps) for steps in (2, 10)]
    assert estimate(SMALL, 6, found) == pytest.approx(4.0, rel=0.02)
    assert estimate(SMALL, 50, found) == pytest.approx(26.0, rel=0.02)


def test_attention_grows_with_the_square_of_the_tokens() -> None:
    found = [measured((640, 720, 81), 100.0, steps=40)]
    double = estimate((1280, 720, 81), 40, found)
    assert double is not None
    assert 200 < double < 400


#: Medians of three runs of the small checkpoint on two busy cores, in a service as bench/admission.py's.
RECORDED = (
    ((64, 64, 9), 6, 0.229),
    ((128, 128, 49), 20, 2.107),
    ((128, 128, 49), 10, 1.658),
    ((96, 96, 25), 12, 0.664),
    ((128, 128, 49), 30, 2.642),
    ((64, 128, 33), 8, 0.643),
    ((128, 64, 17), 40, 1.073),
    ((112, 112, 49), 15, 1.783),
    ((64, 64, 49), 20, 0.795),
    ((128, 128, 9), 20, 0.576),
    ((80, 80, 21), 30, 0.699),
    ((128, 128, 33), 6, 1.091),
    ((64, 64, 9), 40, 0.618),
    ((96, 128, 41), 25, 1.498),
    ((128, 128, 49), 50, 3.111),
)


def errors(known: Sequence[int], asked: Sequence[int]) -> list[float]:
    found = [measured(shape, seconds, steps=steps) for shape, steps, seconds in (RECORDED[n] for n in known)]
    relative = []
    for number in asked:
        shape, steps, seconds = RECORDED[number]
        told = estimate(shape, steps, found)
        assert told is not None
        relative.append(abs(told / seconds - 1))
    return relative


def test_a_shape_that_was_not_measured_is_near_what_others_say() -> None:
    everything = range(len(RECORDED))
    left_out = [errors([n for n in everything if n != each], [each])[0] for each in everything]
    assert median(left_out) < 0.12
    assert max(left_out) < 0.4


def test_three_measurements_are_enough_for_shapes_between_and_beyond_them() -> None:
    assert median(errors(range(3), range(3, len(RECORDED)))) < 0.2
    # Beyond: the largest number of steps was 20.
    assert max(errors(range(3), [n for n, row in enumerate(RECORDED) if row[:1] == (LARGE,)])) < 0.25


def test_measurements_that_contradict_each_other_never_give_less_than_nothing() -> None:
    found = [measured(SMALL, 9.0), measured(LARGE, 1.0)]
    for shape in ((64, 64, 1), (128, 128, 81)):
        told = estimate(shape, 6, found)
        assert told is not None
        assert told > 0
