"""Torch from the runtime's own index or, only when asked for, from another source."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "docker" / "runtimes"
RUNTIME = "torch-2.4.1-cu124"


def loaded(script: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"runtime_{script}", FOLDER / f"{script}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def installer() -> ModuleType:
    return loaded("install")


class Log:
    """Notes commands; the first `failures` of them find no distribution."""

    def __init__(self, failed: type[Exception], failures: int = 0) -> None:
        self.commands: list[list[str]] = []
        self._failed, self._failures = failed, failures

    def run(self, *command: Any, environment: dict[str, str] | None = None) -> str:
        self.commands.append([str(word) for word in command])
        if len(self.commands) <= self._failures:
            raise self._failed("ERROR: No matching distribution found for torch")
        return ""


def test_the_default_is_the_exact_build_from_pytorchs_index_and_says_that_no_hash_is_recorded(
    installer: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    runtime = installer.with_torch_source(installer.read_runtime(RUNTIME), None)
    monkeypatch.setattr(installer, "HERE", tmp_path)
    log = Log(installer.StageFailed, failures=1)
    note = installer.install_torch(["pip"], runtime, log)
    assert log.commands[-1] == [
        *("pip", "install", "--index-url", "https://download.pytorch.org/whl/cu124", "torch==2.4.1+cu124")
    ], "with the CUDA libraries that its metadata pins"
    assert note == "from PyTorch's index, no hash recorded"


def test_once_recorded_the_hashes_are_demanded(
    installer: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    runtime = installer.read_runtime(RUNTIME)
    monkeypatch.setattr(installer, "HERE", tmp_path)
    lock = tmp_path / RUNTIME / "torch.lock"
    lock.parent.mkdir()
    lock.write_text("")
    log = Log(installer.StageFailed)
    assert installer.install_torch(["pip"], runtime, log) == ""
    assert log.commands == [["pip", "install", "--no-deps", "--require-hashes", "-r", str(lock)]]


def test_pypis_build_comes_only_when_it_is_named_and_with_hashes(installer: ModuleType) -> None:
    runtime = installer.with_torch_source(installer.read_runtime(RUNTIME), "pypi")
    assert runtime["torch"] == "2.4.1"
    assert "torch_index" not in runtime
    log = Log(installer.StageFailed, failures=1)
    with pytest.raises(installer.StageFailed):
        installer.install_torch(["pip"], runtime, log)
    (command,) = log.commands
    assert command[2:4] == ["--no-deps", "--require-hashes"]
    assert installer.fingerprint(RUNTIME, None, "pypi") != installer.fingerprint(RUNTIME, None)


def test_a_source_that_is_not_there_names_those_that_are(tmp_path: Path) -> None:
    for runtime, words in ((RUNTIME, "there are: pypi"), ("omni-0.30-cpu", "none but its own")):
        run = subprocess.run(
            [
                sys.executable,
                FOLDER / "install.py",
                runtime,
                "--into",
                tmp_path / "x",
                "--torch-source",
                "cd",
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        assert run.returncode == 2
        assert words in run.stderr


@pytest.mark.slow
def test_where_the_index_is_away_nothing_else_is_taken(tmp_path: Path) -> None:
    closed = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", "PIP_CONFIG_FILE": os.devnull}
    run = subprocess.run(
        [
            sys.executable,
            FOLDER / "install.py",
            RUNTIME,
            "--into",
            tmp_path / "venv",
            "--python",
            "python3.11",
        ],
        env={**os.environ, **closed},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 1
    assert "torch==2.4.1+cu124" in run.stderr


@pytest.mark.parametrize("name", ["requirements.lock", "torch-pypi.lock"])
def test_locks_pin_every_package_with_a_hash_and_no_place(name: str) -> None:
    text = (FOLDER / RUNTIME / name).read_text()
    entries = [line for line in text.splitlines() if line and not line.startswith(("#", " "))]
    assert all(re.fullmatch(r"[a-z0-9-]+==\S+ \\", line) for line in entries)
    assert len(re.findall(r"--hash=sha256:[0-9a-f]{64}$", text, flags=re.MULTILINE)) == len(entries)
    assert "://" not in text
    torch = re.search(r"^(torch|triton|nvidia-)", text, flags=re.MULTILINE)
    assert bool(torch) == (name != "requirements.lock")


def test_locks_hold_what_was_asked_for() -> None:
    pins = loaded("lock").pins
    locked = pins((FOLDER / RUNTIME / "requirements.lock").read_text())
    for name, version in pins((FOLDER / RUNTIME / "requirements.in").read_text()).items():
        assert locked[name] == version
    source = tomllib.loads((FOLDER / RUNTIME / "runtime.toml").read_text())["torch_sources"]["pypi"]
    wanted = pins("\n".join([f"torch=={source['torch']}", *source["torch_packages"]]))
    assert pins((FOLDER / RUNTIME / source["torch_lock"]).read_text()) == wanted


def test_the_lock_agrees_with_the_versions_that_the_adapters_were_written_for() -> None:
    from framekeeper.engine.torch_241 import versions

    pins = loaded("lock").pins
    locked = pins((FOLDER / RUNTIME / "requirements.lock").read_text())
    assert {name: locked[name] for name in versions.OMNI_014 if name != "torch"} == {
        name: version for name, version in versions.OMNI_014.items() if name != "torch"
    }
    newer = pins((FOLDER / "omni-0.30-cpu" / "requirements.lock").read_text())
    for name in ("diffusers", "transformers"):
        assert newer[name] == versions.DIFFUSERS_040[name]
