"""The real vllm-omni on a CPU, with a tiny checkpoint: one engine per executor, one scenario each."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from engine_runtime import engine_python

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

SCENARIO = Path(__file__).with_name("omni_scenario.py")
OPTIONS = {
    "device": "cpu",
    "devices": 1,
    "boundary_ratio": 0.875,
    "flow_shift": 3.0,
    "offload_pin_memory": False,
}
LONG = {"job": "long", "num_inference_steps": 40}

ACTIONS: list[dict[str, Any]] = [
    {"name": "before", "do": "cancel", "job": "job"},
    {"name": "first", "do": "generate"},
    {"name": "again", "do": "generate", "request": {"job": "again"}},
    {"name": "other seed", "do": "generate", "request": {"seed": 2}},
    {"name": "cancelled", "do": "generate", "request": LONG, "cancel_at_step": 3},
    {"name": "cancelled early", "do": "generate", "request": LONG, "cancel_at_phase": "text_encoding"},
    {"name": "after", "do": "cancel", "job": "long"},
    {"name": "unknown", "do": "cancel", "job": "never heard of"},
    {"name": "same job", "do": "generate", "request": {"job": "long", "attempt": 2}},
    {"name": "width", "do": "generate", "request": {"width": 65}},
    {"name": "num_frames", "do": "generate", "request": {"num_frames": 10}},
    {"name": "prompt", "do": "generate", "request": {"prompt": "  "}},
    {"name": "num_inference_steps", "do": "generate", "request": {"num_inference_steps": 900}},
    {"name": "boundary", "do": "generate", "request": {"boundary_ratio": 0.0}},
    {"name": "probe", "do": "generate"},
    {"name": "healthy", "do": "healthy"},
]

LAST: dict[str, list[dict[str, Any]]] = {
    "in_process": [
        {"name": "break", "do": "break_decoder"},
        {"name": "broken", "do": "generate"},
        {"name": "mended", "do": "generate"},
    ],
    "multiprocess": [
        {"name": "killed", "do": "generate", "request": LONG, "kill_ranks_at_step": 3},
        {"name": "dead", "do": "healthy"},
    ],
}


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model") / "tiny"
    subprocess.run([engine_python(), "-m", "framekeeper.checkpoint.tiny", directory], check=True)
    return directory


def play(
    model: Path, directory: Path, options: dict[str, Any], actions: list[dict[str, Any]]
) -> dict[str, Any]:
    """Run a scenario in the engine's Python with an environment as bare as the supervisor's."""
    scenario, result = directory / "scenario.json", directory / "result.json"
    scenario.write_text(json.dumps({"options": options, "actions": actions}))
    scratch = directory / "tmp"
    scratch.mkdir()
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(directory),
        "TMPDIR": str(scratch),
        "HF_HUB_OFFLINE": "1",
    }
    run = subprocess.run(
        [engine_python(), SCENARIO, model, scenario, result],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert run.returncode == 0, run.stderr[-4000:]
    played: dict[str, Any] = json.loads(result.read_text())
    played["output"] = run.stdout + run.stderr
    played["left"] = [path.name for path in scratch.iterdir() if path.name.startswith("framekeeper-")]
    played["by_name"] = {
        action["name"]: seen for action, seen in zip(actions, played["results"], strict=True)
    }
    return played


@pytest.fixture(scope="module", params=["in_process", "multiprocess"])
def played(
    request: pytest.FixtureRequest, checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    directory = tmp_path_factory.mktemp(request.param)
    return play(checkpoint, directory, {**OPTIONS, "executor": request.param}, ACTIONS + LAST[request.param])


def seen(played: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = played["by_name"][name]
    return found


def test_load_reports_its_phases_and_facts(played: dict[str, Any]) -> None:
    assert played["phases"] == ["importing", "loading", "dummy_run"], "the dummy run reports no steps"
    facts = played["facts"]
    assert facts["versions"]["vllm-omni"] == "0.30.0"
    assert facts["experts"] == 2
    assert facts["memory_bytes"] > 0


def test_frames_are_a_moving_picture(played: dict[str, Any]) -> None:
    first = seen(played, "first")
    assert first["outcome"] == "done", first
    assert first["shape"] == [9, 64, 64, 3]
    assert first["dtype"] == "uint8"
    assert first["finite"]
    assert first["deviation"] > 0.05
    assert first["inside"] > 0.9
    assert first["moves"] > 0.01


def test_the_seed_decides_the_frames(played: dict[str, Any]) -> None:
    assert seen(played, "again")["sha256"] == seen(played, "first")["sha256"]
    assert seen(played, "other seed")["sha256"] != seen(played, "first")["sha256"]


def test_steps_come_one_by_one(played: dict[str, Any]) -> None:
    first = seen(played, "first")
    assert [step for step, *_ in first["steps"]] == [0, 1, 2, 3, 4]
    assert {steps for _, steps, *_ in first["steps"]} == {4}
    assert all(seconds > 0 and memory > 0 for _, _, seconds, memory, _ in first["steps"])
    assert first["phases"] == ["text_encoding", "denoising", "decoding"]
    assert set(first["seconds"]) == {"text_encoding", "denoising", "decoding", "total"}
    assert first["peak_memory_bytes"] > 0


def test_both_experts_run(played: dict[str, Any]) -> None:
    first = seen(played, "first")
    assert set(first["expert_steps"]) == {"0", "1"}
    assert sum(first["expert_steps"].values()) == 4
    counted = [expert for *_, expert in first["steps"] if expert is not None]
    assert {str(expert): counted.count(expert) for expert in set(counted)} == first["expert_steps"]


def test_the_requests_boundary_is_used(played: dict[str, Any]) -> None:
    assert seen(played, "boundary")["expert_steps"] == {"0": 4}


def test_cancel_stops_before_the_next_step(played: dict[str, Any]) -> None:
    cancelled = seen(played, "cancelled")
    assert cancelled["outcome"] == "cancelled", cancelled
    # The report and the check are a moment apart: the cancel reaches this step's check or the next one's.
    assert cancelled["step"] in {3, 4, 5}
    assert cancelled["steps"][-1][0] == cancelled["step"]


def test_cancel_before_the_first_step(played: dict[str, Any]) -> None:
    early = seen(played, "cancelled early")
    assert early["outcome"] == "cancelled"
    assert early["step"] in {0, 1}


def test_cancel_outside_a_generation_is_harmless(played: dict[str, Any]) -> None:
    assert seen(played, "same job")["outcome"] == "done"
    assert seen(played, "same job")["sha256"] == seen(played, "first")["sha256"]


@pytest.mark.parametrize("field", ["width", "num_frames", "prompt", "num_inference_steps"])
def test_a_wrong_request_is_refused_by_its_field(played: dict[str, Any], field: str) -> None:
    refused = seen(played, field)
    assert refused["outcome"] == "refused", refused
    assert refused["param"] == field


def test_the_engine_goes_on_after_all_that(played: dict[str, Any]) -> None:
    assert seen(played, "probe")["sha256"] == seen(played, "first")["sha256"]
    assert seen(played, "healthy") is True


@pytest.mark.parametrize("played", ["in_process"], indirect=True)
def test_a_failure_without_words_is_told_by_its_type(played: dict[str, Any]) -> None:
    """An exception without a message comes out of upstream's engine as an output without frames."""
    assert seen(played, "broken")["outcome"] == "failed"
    assert "AssertionError" in seen(played, "broken")["message"]
    assert seen(played, "mended")["sha256"] == seen(played, "first")["sha256"]


@pytest.mark.parametrize("played", ["multiprocess"], indirect=True)
def test_a_killed_rank_fails_the_job_and_the_engine(played: dict[str, Any]) -> None:
    assert seen(played, "killed")["outcome"] == "failed"
    assert seen(played, "dead") is False


def test_nothing_is_left_and_no_prompt_is_logged(played: dict[str, Any]) -> None:
    assert played["left"] == []
    assert "cat walks" not in played["output"]


def test_layerwise_offload_blocking_and_unheard(checkpoint: Path, tmp_path: Path) -> None:
    options = {**OPTIONS, "offload": "layerwise", "offload_prefetch": "sync"}
    actions = [
        {"name": "first", "do": "generate"},
        {"name": "drop", "do": "drop_receiver"},
        {"name": "unheard", "do": "generate"},
    ]
    played = play(checkpoint, tmp_path, options, actions)
    assert seen(played, "first")["outcome"] == "done"
    assert seen(played, "first")["expert_steps"].keys() == {"0", "1"}
    # And with nobody listening to its reports the engine goes on.
    assert seen(played, "unheard")["outcome"] == "done"
    assert seen(played, "unheard")["sha256"] == seen(played, "first")["sha256"]
    assert seen(played, "unheard")["steps"] == []


def test_nothing_is_compiled_when_the_profile_says_off(played: dict[str, Any]) -> None:
    assert played["facts"]["compiled_modules"] == [0, 0]


def test_both_experts_are_compiled_when_the_profile_says_so(checkpoint: Path, tmp_path: Path) -> None:
    played = play(checkpoint, tmp_path, {**OPTIONS, "compile": "regional"}, [{"name": "a", "do": "generate"}])
    assert played["facts"]["compiled_modules"] == [2, 2], "two blocks each in the small checkpoint"
    assert seen(played, "a")["outcome"] == "done"
