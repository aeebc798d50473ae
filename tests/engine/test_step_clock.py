"""A hang is judged by the job's own steps."""

from __future__ import annotations

import pytest

from framekeeper.engine.step_clock import StepClock


def clock(bound: float, *measured: float) -> StepClock:
    made = StepClock(bound)
    for seconds in measured:
        made.note(seconds)
    return made


def test_before_anything_is_measured_the_profile_decides() -> None:
    assert clock(600).allowed_seconds == 600
    assert clock(600, 90.0).allowed_seconds == 600, "the first step may have compiled"


def test_measured_steps_make_it_shorter() -> None:
    assert clock(600, 90.0, 2.0, 2.0).allowed_seconds == pytest.approx(20.0)


def test_very_fast_steps_leave_room_for_a_pause_of_the_machine() -> None:
    assert clock(600, 0.01, 0.01, 0.01).allowed_seconds == 5


def test_slow_steps_never_lift_it_above_the_profile() -> None:
    assert clock(60, 30.0, 30.0, 30.0).allowed_seconds == 60
