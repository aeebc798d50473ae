"""The contracts of a backend in the runtime torch-2.4.1-cu124: vllm-omni 0.14 and diffusers, on a CPU."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from engine_runtime import engine_python, torch241_python
from framekeeper.profiles.launch import resolve
from framekeeper.profiles.load import load_profile
from profile_samples import host

pytestmark = [pytest.mark.runtimes, pytest.mark.slow, pytest.mark.timeout(900)]

SCENARIO = Path(__file__).with_name("torch241_scenario.py")
CONFIGS = Path(__file__).parents[3] / "configs" / "profiles"
OPTIONS = {"device": "cpu", "devices": 1, "boundary_ratio": 0.875, "flow_shift": 3.0}
BACKENDS = ["vllm_omni", "diffusers"]
CLASSES = {"vllm_omni": "VllmOmni014Backend", "diffusers": "DiffusersBackend"}
LONG = {"job": "long", "num_inference_steps": 40}

ACTIONS: list[dict[str, Any]] = [
    {"name": "before", "do": "cancel", "job": "job"},
    {"name": "first", "do": "generate"},
    {"name": "again", "do": "generate", "request": {"job": "again"}},
    {"name": "other seed", "do": "generate", "request": {"seed": 2}},
    {"name": "no guidance", "do": "generate", "request": {"guidance_scale": 0.0, "guidance_scale_2": 0.0}},
    {
        "name": "guidance of one",
        "do": "generate",
        "request": {"guidance_scale": 1.0, "guidance_scale_2": 1.0},
    },
    {"name": "shift", "do": "generate", "request": {"flow_shift": 8.0}},
    {"name": "no boundary", "do": "generate", "request": {"boundary_ratio": 0.0}},
    {"name": "cancelled", "do": "generate", "request": LONG, "cancel_at_step": 3},
    {"name": "probe after cancel", "do": "generate"},
    {"name": "cancelled early", "do": "generate", "request": LONG, "cancel_at_phase": "text_encoding"},
    {"name": "after", "do": "cancel", "job": "long"},
    {"name": "unknown", "do": "cancel", "job": "never heard of"},
    {"name": "same job", "do": "generate", "request": {"job": "long", "attempt": 2}},
    {"name": "width", "do": "generate", "request": {"width": 65}},
    {"name": "height", "do": "generate", "request": {"height": 72}},
    {"name": "num_frames", "do": "generate", "request": {"num_frames": 10}},
    {"name": "prompt", "do": "generate", "request": {"prompt": "  "}},
    {"name": "num_inference_steps", "do": "generate", "request": {"num_inference_steps": 900}},
    {"name": "no steps", "do": "generate", "request": {"num_inference_steps": 0}},
    {"name": "probe after refusals", "do": "generate"},
    {"name": "break", "do": "break_decoder"},
    {"name": "broken", "do": "generate"},
    {"name": "healthy", "do": "healthy"},
    {"name": "mended", "do": "generate"},
    {"name": "children", "do": "children"},
]


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model") / "tiny"
    subprocess.run([torch241_python(), "-m", "framekeeper.checkpoint.tiny", directory], check=True)
    return directory


def run(
    python: Path,
    backend: str,
    model: Path,
    directory: Path,
    options: dict[str, Any],
    actions: list[dict[str, Any]],
) -> subprocess.CompletedProcess[str]:
    """A scenario in the environment that the supervisor makes for cpu-tiny-torch241."""
    (directory / "scenario.json").write_text(json.dumps({"options": options, "actions": actions}))
    facts = host(
        cpu_count=os.cpu_count() or 1,
        inherited={"PATH": os.environ["PATH"]},
        run_directory=directory / "run",
        cache_directory=directory / "cache",
        temporary_directory=directory / "tmp",
    )
    launch = resolve(load_profile("cpu-tiny-torch241", CONFIGS), facts)
    for each in launch.directories:
        each.mkdir(parents=True, exist_ok=True)
    return subprocess.run(
        [python, SCENARIO, backend, model, directory / "scenario.json", directory / "result.json"],
        env=launch.environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )


def play(
    backend: str, model: Path, directory: Path, options: dict[str, Any], actions: list[dict[str, Any]]
) -> dict[str, Any]:
    finished = run(torch241_python(), backend, model, directory, options, actions)
    assert finished.returncode == 0, finished.stderr[-4000:]
    played: dict[str, Any] = json.loads((directory / "result.json").read_text())
    played["backend"] = backend
    played["output"] = finished.stdout + finished.stderr
    played["by_name"] = {
        action["name"]: seen for action, seen in zip(actions, played["results"], strict=True)
    }
    return played


@pytest.fixture(scope="module", params=BACKENDS)
def played(
    request: pytest.FixtureRequest, checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    return play(request.param, checkpoint, tmp_path_factory.mktemp(request.param), OPTIONS, ACTIONS)


def seen(played: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = played["by_name"][name]
    return found


def test_load_reports_its_phases_and_facts(played: dict[str, Any]) -> None:
    assert played["class"] == CLASSES[played["backend"]]
    assert played["phases"] == ["importing", "loading", "dummy_run"], "the dummy run reports no steps"
    facts = played["facts"]
    assert facts["versions"]["torch"].startswith("2.4.1")
    assert facts["versions"]["diffusers"] == "0.36.0"
    assert facts["versions"].get("vllm-omni") == ("0.14.0" if played["backend"] == "vllm_omni" else None)
    assert facts["experts"] == 2
    assert facts["memory_bytes"] > 0


def test_frames_are_a_moving_picture(played: dict[str, Any]) -> None:
    first = seen(played, "first")
    assert first["outcome"] == "done", first
    assert first["shape"] == [9, 64, 64, 3]
    assert first["dtype"] == "float32"
    assert first["finite"]
    assert first["deviation"] > 0.05
    assert first["inside"] > 0.9
    assert first["moves"] > 0.01


def test_the_request_decides_the_frames(played: dict[str, Any]) -> None:
    first = seen(played, "first")["sha256"]
    assert seen(played, "again")["sha256"] == first
    for name in ("other seed", "no guidance", "shift", "no boundary"):
        assert seen(played, name)["outcome"] == "done", name
        assert seen(played, name)["sha256"] != first, name
    # vllm-omni 0.14 takes a guidance of 0 for none given and puts 4 in its place, unless told otherwise.
    assert seen(played, "no guidance")["sha256"] == seen(played, "guidance of one")["sha256"]


def test_steps_come_one_by_one(played: dict[str, Any]) -> None:
    first = seen(played, "first")
    assert [step for step, *_ in first["steps"]] == [0, 1, 2, 3, 4]
    assert {steps for _, steps, *_ in first["steps"]} == {4}
    assert all(seconds > 0 and memory > 0 for _, _, seconds, memory, _ in first["steps"])
    assert first["phases"] == ["text_encoding", "denoising", "decoding"]
    assert set(first["seconds"]) == {"text_encoding", "denoising", "decoding", "total"}
    assert sum(first["seconds"].values()) <= 2 * first["seconds"]["total"]
    assert first["peak_memory_bytes"] > 0


def test_both_experts_run(played: dict[str, Any]) -> None:
    first = seen(played, "first")
    assert first["expert_steps"] == {"0": 2, "1": 2}
    assert [expert for *_, expert in first["steps"]] == [None, 0, 0, 1, 1]
    assert seen(played, "no boundary")["expert_steps"] == {"0": 4}
    assert seen(played, "shift")["expert_steps"] == {"0": 3, "1": 1}, "more shift, more high-noise steps"


def test_cancel_stops_before_the_next_step_and_the_engine_goes_on(played: dict[str, Any]) -> None:
    cancelled = seen(played, "cancelled")
    assert (cancelled["outcome"], cancelled["step"]) == ("cancelled", 3)
    assert [step for step, *_ in cancelled["steps"]] == [0, 1, 2, 3]
    assert "decoding" not in cancelled["phases"]
    assert seen(played, "probe after cancel")["sha256"] == seen(played, "first")["sha256"]


def test_cancel_before_the_first_step(played: dict[str, Any]) -> None:
    early = seen(played, "cancelled early")
    assert (early["outcome"], early["step"]) == ("cancelled", 0)


def test_cancel_outside_a_generation_is_harmless(played: dict[str, Any]) -> None:
    assert seen(played, "same job")["sha256"] == seen(played, "first")["sha256"]


@pytest.mark.parametrize("field", ["width", "height", "num_frames", "prompt", "num_inference_steps"])
def test_a_wrong_request_is_refused_by_its_field(played: dict[str, Any], field: str) -> None:
    refused = seen(played, field)
    assert refused["outcome"] == "refused", refused
    assert refused["param"] == field


def test_the_engine_goes_on_after_refusals_and_a_failure(played: dict[str, Any]) -> None:
    first = seen(played, "first")["sha256"]
    assert seen(played, "no steps")["param"] == "num_inference_steps"
    assert seen(played, "probe after refusals")["sha256"] == first
    assert seen(played, "broken")["outcome"] == "failed"
    assert "AssertionError" in seen(played, "broken")["message"]
    assert seen(played, "healthy") is True
    assert seen(played, "mended")["sha256"] == first


def test_in_process_has_no_second_process(played: dict[str, Any]) -> None:
    assert seen(played, "children") == []


def test_no_prompt_and_no_alarm_is_logged(played: dict[str, Any]) -> None:
    assert "cat walks" not in played["output"]
    assert "ERROR" not in played["output"]
    assert "it/s" not in played["output"], "a progress bar"


def test_both_backends_make_the_same_video(checkpoint: Path, tmp_path: Path) -> None:
    """Two implementations of one model: what differs is rounding."""
    action = {"name": "first", "do": "generate"}
    films = {}
    for backend in BACKENDS:
        directory = tmp_path / backend
        directory.mkdir()
        films[backend] = seen(
            play(backend, checkpoint, directory, {**OPTIONS, "dtype": "float32"}, [action]), "first"
        )
    for key in ("deviation", "moves"):
        assert films["vllm_omni"][key] == pytest.approx(films["diffusers"][key], rel=1e-3)


@pytest.mark.parametrize(
    "offload",
    [
        {"offload": "layerwise", "offload_prefetch": "sync", "offload_pin_memory": False},
        # Without a card there is no memory to pin and nothing to overlap: the same then, and no failure.
        {"offload": "layerwise", "offload_prefetch": "async", "offload_pin_memory": True},
        {"offload": "model"},
    ],
    ids=lambda offload: "-".join(str(value) for value in offload.values()),
)
def test_offload_changes_no_frame(
    played: dict[str, Any], checkpoint: Path, tmp_path: Path, offload: dict[str, Any]
) -> None:
    actions = [
        {"name": "first", "do": "generate"},
        {"name": "cancelled", "do": "generate", "request": LONG, "cancel_at_step": 3},
        {"name": "second", "do": "generate"},
    ]
    moved = play(played["backend"], checkpoint, tmp_path, {**OPTIONS, **offload}, actions)
    assert seen(moved, "cancelled")["step"] == 3
    for name in ("first", "second"):
        assert seen(moved, name)["expert_steps"] == {"0": 2, "1": 2}
        assert seen(moved, name)["sha256"] == seen(played, "first")["sha256"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_options_that_it_cannot_do_are_refused_all_at_once(
    checkpoint: Path, tmp_path: Path, backend: str
) -> None:
    options = {**OPTIONS, "executor": "multiprocess", "compile": "regional", "quantization": "fp8"}
    finished = run(torch241_python(), backend, checkpoint, tmp_path, options, [])
    assert finished.returncode != 0
    last = finished.stderr.strip().splitlines()[-1]
    assert all(word in last for word in ("ValueError", "executor", "compile", "quantization")), last
    assert "in_process" in last


def test_another_runtime_is_refused_by_its_versions(checkpoint: Path, tmp_path: Path) -> None:
    """The class for 0.14, asked for by name in the environment of 0.30."""
    code = (
        "from framekeeper.engine.backends.vllm_omni_014 import VllmOmni014Backend as Backend\n"
        "from framekeeper.engine.backends.backend import Progress\n"
        f"Backend().load({str(checkpoint)!r}, {OPTIONS!r}, Progress(phase=print, step=print))\n"
    )
    finished = subprocess.run(
        [engine_python(), "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    last = finished.stderr.strip().splitlines()[-1]
    assert "WrongVersion" in last
    for words in ("torch is 2.13.0", "must be 2.4.1", "vllm-omni is 0.30.0, must be 0.14.0"):
        assert words in last
