"""Attention in fp8, as far as a CPU can show it: scales by head, NaN that stays, keys without their mean."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from engine_runtime import engine_python

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def seen() -> dict[str, Any]:
    ran = subprocess.run(
        [engine_python(), Path(__file__).with_name("fp8_scenario.py")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=os.environ | {"FRAMEKEEPER_DEVICE": "cpu"},
    )
    lines = [line for line in ran.stdout.splitlines() if "RESULT " in line]
    assert lines, ran.stderr[-3000:]
    found: dict[str, Any] = json.loads(lines[0].split("RESULT ", 1)[1])
    return found


def test_each_head_has_a_scale_of_its_own(seen: dict[str, Any]) -> None:
    assert seen["dtype"] == "torch.float8_e4m3fn"
    assert seen["largest"] == 448
    assert seen["error"] < 0.04
    assert seen["other_heads_error"] < 0.04, "a head a thousand times as large costs the others nothing"


def test_a_value_that_is_not_finite_is_not_hidden(seen: dict[str, Any]) -> None:
    assert seen["nan_stays"]


def test_a_dense_video_is_attended_in_fp8_and_keys_mean_is_no_error(seen: dict[str, Any]) -> None:
    assert 0.001 < seen["attention_error"] < 0.1


def test_another_kernel_is_refused_and_not_left_unquantised(seen: dict[str, Any]) -> None:
    assert "attention_quantization: none" in seen["refused"]
