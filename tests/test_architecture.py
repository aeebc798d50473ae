"""What the rooms promise one another, held by looking at the source."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

PROJECT = Path(__file__).resolve().parent.parent
PACKAGE = PROJECT / "server" / "framekeeper"
MODULES = sorted(PACKAGE.rglob("*.py"))
#: Where an engine's libraries may be imported: only a worker's process ever gets there.
ENGINE_ROOMS = (
    "engine/backends/",
    "engine/cpu_platform/",
    "engine/torch_241/",
    "doctor/probes/",
    "checkpoint/tiny.py",
    "engine/worker.py",
)
ENGINE_LIBRARIES = {"torch", "vllm", "vllm_omni", "diffusers", "transformers", "tokenizers", "safetensors"}


def name(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def imported(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.split(".")[0])
    return found


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_engine_libraries_are_imported_only_by_what_runs_in_a_worker(path: Path) -> None:
    if not name(path).startswith(ENGINE_ROOMS):
        assert not imported(path) & ENGINE_LIBRARIES


def test_gateway_and_supervisor_start_without_any_engine_library() -> None:
    code = (
        "import sys, framekeeper.gateway.app, framekeeper.engine.supervisor, framekeeper.cli;"
        f"print(sorted(set(sys.modules) & {ENGINE_LIBRARIES | {'numpy', 'av'}!r}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_installing_the_gateway_brings_no_torch() -> None:
    lock = (PROJECT / "server" / "requirements.lock").read_text(encoding="utf-8")
    locked = {line.split("==")[0] for line in lock.splitlines() if "==" in line and not line.startswith(" ")}
    assert {"fastapi", "uvicorn", "gunicorn", "prometheus-client", "procrastinate"} <= locked
    assert not locked & {each.replace("_", "-") for each in ENGINE_LIBRARIES}


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_module_is_one_noun_of_a_length_one_can_read(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= (60 if name(path) == "gateway/app.py" else 400)
    assert path.stem not in ("utils", "util", "helpers", "helper", "manager", "core", "common", "misc")


@pytest.mark.parametrize(
    "path", sorted((PROJECT / "configs" / "profiles").glob("*.yaml")), ids=lambda p: p.stem
)
def test_no_shipped_profile_runs_the_fault_backend(path: Path) -> None:
    profile = yaml.safe_load(path.read_text(encoding="utf-8"))
    text = path.read_text(encoding="utf-8")
    assert profile.get("backend") != "fault"
    assert "backend: fault" not in text
