"""Pictures in the real backends on a CPU: each kind of tiny checkpoint takes them as its model does."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine_runtime import engine_python, torch241_python

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

SCENARIO = Path(__file__).with_name("picture_scenario.py")
BOUNDARY = {"t2v": 0.875, "ti2v": None, "i2v": 0.9}
CASES = [pytest.param(("vllm_omni", kind), id=f"vllm_omni-{kind}") for kind in ("t2v", "ti2v", "i2v")] + [
    pytest.param(("diffusers", kind), id=f"diffusers-{kind}", marks=pytest.mark.runtimes)
    for kind in ("t2v", "ti2v", "i2v")
]


@pytest.fixture(scope="module", params=CASES)
def result(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What one backend made of one checkpoint, with its `kind`."""
    backend, kind = request.param
    directory = tmp_path_factory.mktemp("pictures")
    model, options, answer = directory / "model", directory / "options.json", directory / "result.json"
    subprocess.run([engine_python(), "-m", "framekeeper.checkpoint.tiny", model, kind], check=True)
    options.write_text(
        json.dumps(
            {
                "device": "cpu",
                "devices": 1,
                "boundary_ratio": BOUNDARY[kind],
                "flow_shift": 3.0,
                "offload_pin_memory": False,
            }
        )
    )
    python = engine_python() if backend == "vllm_omni" else torch241_python()
    finished = subprocess.run(
        [python, SCENARIO, backend, model, options, answer],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    return {"kind": kind, **json.loads(answer.read_text())}


def test_loading_tells_whether_the_model_takes_pictures(result: dict[str, Any]) -> None:
    expected = {"t2v": "none", "ti2v": "optional", "i2v": "required"}
    assert result["facts"]["pictures"] == expected[result["kind"]]


def test_what_the_model_cannot_make_is_refused_by_its_field(result: dict[str, Any]) -> None:
    refused = {name for name, made in result["made"].items() if made["outcome"] == "refused"}
    without, given = {"none", "none again"}, {"red", "blue", "red again"}
    assert refused == {"t2v": given, "ti2v": set(), "i2v": without}[result["kind"]]
    assert {result["made"][name]["param"] for name in refused} <= {"input_reference"}


def test_every_video_is_whole_and_every_step_of_every_expert_reported(result: dict[str, Any]) -> None:
    experts = [0] if result["kind"] == "ti2v" else [0, 1]
    for made in result["made"].values():
        if made["outcome"] == "done":
            assert (made["shape"], made["finite"], made["experts"]) == ([9, 64, 64, 3], True, experts)
            assert made["deviation"] > 0.02
            assert made["steps"] == [0, 1, 2, 3, 4]
            assert made["phases"] == ["text_encoding", "denoising", "decoding"]


def test_the_same_picture_makes_the_same_video_and_another_one_another(result: dict[str, Any]) -> None:
    first = {
        name: np.array(made["first_frame"])
        for name, made in result["made"].items()
        if made["outcome"] == "done"
    }
    if "red" in first:
        assert np.array_equal(first["red"], first["red again"])
        assert np.abs(first["red"] - first["blue"]).mean() > 0.005
    if "none" in first:
        assert np.array_equal(first["none"], first["none again"])
    if {"none", "red"} <= first.keys():
        assert np.abs(first["none"] - first["red"]).mean() > 0.005
