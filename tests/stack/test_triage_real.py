"""Triage with the real engine: a healthy checkpoint, one cut short, half-written caches, and the scripts."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engine_runtime import engine_python, torch241_python
from system import PROJECT

pytestmark = pytest.mark.slow

SHARD = "transformer_2/diffusion_pytorch_model.safetensors"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Working directory of the module's runs, whose compile caches they share."""
    directory = tmp_path_factory.mktemp("triage")
    profiles = directory / "profiles"
    shutil.copytree(PROJECT / "configs" / "profiles", profiles)
    compiled = "extends: cpu-tiny\ncompile: regional\nfallbacks: []\n"
    (profiles / "cpu-compiled.yaml").write_text(compiled)
    return directory


@pytest.fixture(scope="module")
def cut_model(home: Path, tiny_model: Path) -> Path:
    """The small checkpoint, the end of the second expert's only shard missing."""
    model = home / "cut"
    shutil.copytree(tiny_model, model)
    shard = model / SHARD
    os.truncate(shard, shard.stat().st_size - 5000)
    return model


def environment(home: Path, model: Path, python: Path) -> dict[str, str]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("FRAMEKEEPER_")}
    return inherited | {
        "FRAMEKEEPER_VAR": str(home / "var"),
        "FRAMEKEEPER_PROFILES": str(home / "profiles"),
        "FRAMEKEEPER_MODEL": str(model),
        "FRAMEKEEPER_ENGINE_PYTHON": str(python),
    }


def triage(
    home: Path, model: Path, profile: str, *, python: Path, expect: int
) -> tuple[dict[str, Any], Path, str]:
    """What `framekeeper triage --json` says, the script that it wrote (or did not) and its other words."""
    script, report = home / "reproduce.py", home / "report.md"
    for file in (script, report):
        file.unlink(missing_ok=True)
    command = [sys.executable, "-m", "framekeeper", "triage", profile, "--json"]
    command += ["--report", str(report), "--script", str(script)]
    ended = subprocess.run(
        command, env=environment(home, model, python), cwd=home, capture_output=True, text=True, check=False
    )
    assert ended.returncode == expect, ended.stdout + ended.stderr
    assert "Traceback" not in ended.stderr
    assert report.read_text().startswith(f"# Triage of {profile}")
    return json.loads(ended.stdout), script, ended.stderr


def reproduce(script: Path, python: Path, home: Path) -> subprocess.CompletedProcess[str]:
    """Run the script with the engine's Python, as its first lines tell people to."""
    plain = {k: v for k, v in os.environ.items() if not k.startswith("FRAMEKEEPER_")}
    return subprocess.run(
        [python, script], env=plain, cwd=home, capture_output=True, text=True, timeout=200, check=False
    )


def states(record: dict[str, Any]) -> dict[str, str]:
    return {step["step"]: step["result"] for step in record["steps"]}


def test_a_healthy_checkpoint_passes_as_configured_and_leaves_no_script(home: Path, tiny_model: Path) -> None:
    record, script, said = triage(home, tiny_model, "cpu-tiny", python=engine_python(), expect=0)
    assert record["layer"] is None
    assert record["sentence"] == "The job passes as configured: triage has nothing to find."
    assert states(record)["configured"] == "passed"
    assert states(record)["weights"] == "not tried"
    assert not script.exists()
    assert "nothing fails" in said


def test_a_cut_shard_is_named_by_the_weights_step_and_the_script_fails_the_same(
    home: Path, cut_model: Path
) -> None:
    record, script, _ = triage(home, cut_model, "cpu-tiny", python=engine_python(), expect=1)
    assert record["layer"] == "weights"
    assert f"{cut_model / SHARD} is truncated: " in record["sentence"]
    assert states(record) == {
        "configured": "failed",
        "caches": "skipped",
        "compile": "skipped",
        "quantization": "skipped",
        "processes": "skipped",
        "direct": "failed",
        "weights": "failed",
    }
    signatures = {step["step"]: step.get("signature") for step in record["steps"]}
    assert signatures["configured"] == signatures["direct"] == "weights_truncated"
    alone = reproduce(script, engine_python(), home)
    assert alone.returncode == 1
    assert "framekeeper.engine.worker" not in script.read_text()
    assert "incomplete metadata, file not fully covered" in alone.stderr


@pytest.mark.runtimes
def test_a_library_cut_short_in_the_compile_cache_is_the_caches_fault(home: Path, tiny_model: Path) -> None:
    first, _, _ = triage(home, tiny_model, "cpu-compiled", python=engine_python(), expect=0)
    assert states(first)["configured"] == "passed"
    libraries = list((home / "var" / "cache").rglob("*.so"))
    assert libraries, "the profile compiled nothing"
    for library in libraries:
        os.truncate(library, 100)
    record, _, _ = triage(home, tiny_model, "cpu-compiled", python=engine_python(), expect=1)
    assert record["layer"] == "caches"
    assert states(record)["configured"] == "failed"
    assert states(record)["caches"] == "passed"
    assert "doctor --clear-caches" in record["advice"]
    assert all(library.stat().st_size == 100 for library in libraries), "the evidence stays"


@pytest.mark.runtimes
@pytest.mark.parametrize("old", [True, False])
def test_the_diffusers_script_runs_with_the_libraries_alone_and_fails_on_a_cut_shard(
    old: bool, home: Path, tiny_model: Path, cut_model: Path
) -> None:
    python = torch241_python() if old else engine_python()
    name = "cpu-tiny-torch241-diffusers" if old else "cpu-diffusers"
    (home / "profiles" / "cpu-diffusers.yaml").write_text(
        "extends: cpu-tiny\nbackend: diffusers\nfallbacks: []\n"
    )
    record, script, _ = triage(home, cut_model, name, python=python, expect=1)
    assert record["layer"] == "weights"
    text = script.read_text()
    assert "from diffusers import WanPipeline" in text
    assert "import framekeeper" not in text
    assert reproduce(script, python, home).returncode == 1
    script.write_text(text.replace(str(cut_model), str(tiny_model)))
    alone = reproduce(script, python, home)
    assert alone.returncode == 0, alone.stderr
    assert "PASSED: the libraries alone make this video" in alone.stdout
    assert "frames (9, 64, 64, 3)" in alone.stdout
