"""A launch of cpu-tiny in the real runtime: what it promises about environment, compiler and processes."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from engine_runtime import engine_python
from framekeeper.profiles.environment import DECIDED, PLACEBOS
from framekeeper.profiles.launch import Launch, resolve
from framekeeper.profiles.load import load_profile
from framekeeper.profiles.schema import parse_size
from profile_samples import host

pytestmark = [pytest.mark.slow, pytest.mark.timeout(280)]

CONFIGS = Path(__file__).parents[2] / "configs" / "profiles"
SCENARIO = Path(__file__).with_name("launch_scenario.py")


def launch_in(directory: Path) -> Launch:
    facts = host(
        cpu_count=2,
        inherited=dict.fromkeys((*PLACEBOS, *DECIDED), "inherited"),
        run_directory=directory / "run",
        cache_directory=directory / "cache",
    )
    return resolve(load_profile("cpu-tiny", CONFIGS), facts)


def play(directory: Path, environment: dict[str, str], launch: dict[str, Any]) -> dict[str, Any]:
    asked, told = directory / "launch.json", directory / "result.json"
    asked.write_text(json.dumps(launch))
    run = subprocess.run(
        [engine_python(), SCENARIO, asked, told],
        env=environment,
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
        timeout=260,
    )
    assert run.returncode == 0, run.stderr[-4000:]
    result: dict[str, Any] = json.loads(told.read_text())
    return result


def test_torch_compile_calls_no_compiler_when_the_profile_says_off(tmp_path: Path) -> None:
    environment = launch_in(tmp_path).environment
    nothing = {"model": "", "options": None}
    assert play(tmp_path, environment, nothing)["compiler_calls"] == 0
    compiling = {
        k: v for k, v in environment.items() if k not in ("TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE")
    }
    assert play(tmp_path, compiling, nothing)["compiler_calls"] == 1


def test_cpu_tiny_makes_its_default_and_its_largest_video_in_one_process(tmp_path: Path) -> None:
    launch = launch_in(tmp_path)
    for directory in launch.directories:
        directory.mkdir(parents=True, exist_ok=True)
    model = tmp_path / "model"
    subprocess.run(
        [engine_python(), "-m", "framekeeper.checkpoint.tiny", model],
        check=True,
        env=launch.environment,
        capture_output=True,
    )
    profile = launch.profile
    common = profile.defaults.model_dump(exclude={"size"}) | {
        "job": "job",
        "attempt": 1,
        "prompt": "a cat walks on the grass",
        "seed": 1,
        "directory": str(tmp_path),
    }
    sizes = [profile.defaults.size, profile.admits.size]
    requests = [
        {**common, "width": parse_size(size)[0], "height": parse_size(size)[1], "num_frames": frames}
        for size, frames in zip(sizes, (profile.defaults.num_frames, profile.admits.num_frames), strict=True)
    ]
    requests[1]["num_inference_steps"] = profile.warm_up.num_inference_steps
    result = play(
        tmp_path,
        launch.environment,
        {"model": str(model), "options": launch.options, "requests": requests},
    )
    assert [video["shape"] for video in result["videos"]] == [[9, 64, 64, 3], [49, 128, 128, 3]]
    for video in result["videos"]:
        assert video["finite"]
        assert video["varies"]
        assert set(video["experts"]) == {"0", "1"}, (
            "both experts must have run, also in a warm-up of four steps"
        )
    assert result["children"] == []
    assert result["frames_compiled"] == 0
    assert "inherited" not in result["environment"].values()
    for name, value in launch.environment.items():
        # vllm-omni sets a few variables of its own while it starts; none of ours may have changed.
        assert result["environment"][name] == value
