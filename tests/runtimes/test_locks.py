"""Every runtime's lock holds what it is made from, and the check that says so can fail."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "docker" / "runtimes"
RUNTIMES = sorted(path.parent.name for path in FOLDER.glob("*/runtime.toml"))


@pytest.fixture(scope="module")
def lock() -> ModuleType:
    spec = importlib.util.spec_from_file_location("runtime_lock", FOLDER / "lock.py")
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FOLDER / "omni-0.30-cu130", tmp_path / "omni-0.30-cu130"))


def test_every_lock_satisfies_what_it_is_made_from() -> None:
    done = subprocess.run(
        [sys.executable, FOLDER / "lock.py", "--check"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", RUNTIMES)
def test_every_pin_has_a_hash_and_no_place(name: str) -> None:
    for path in FOLDER.joinpath(name).glob("*.lock"):
        text = path.read_text()
        entries = re.findall(r"^[a-z0-9][a-z0-9-]*==[^ ]+ \\\n    --hash=sha256:[0-9a-f]{64}\n", text, re.M)
        assert entries
        assert "".join(entries) == "".join(line for line in text.splitlines(True) if line[0] != "#")


@pytest.mark.parametrize("name", RUNTIMES)
def test_torch_of_a_source_is_the_version_of_the_runtime(name: str) -> None:
    runtime = tomllib.loads((FOLDER / name / "runtime.toml").read_text())
    version = runtime["torch"].partition("+")[0]
    for source in runtime.get("torch_sources", {}).values():
        assert source["torch"] == version
        assert f"\ntorch=={version} " in (FOLDER / name / source["torch_lock"]).read_text()


def test_a_pin_that_moved_is_told(lock: ModuleType, copy: Path) -> None:
    requirements = copy / "requirements.in"
    requirements.write_text(requirements.read_text().replace("vllm-omni==0.30.0", "vllm-omni==0.31.0"))
    assert lock.faults(copy) == [
        "omni-0.30-cu130/requirements.lock has vllm-omni==0.30.0, requirements.in wants 0.31.0"
    ]


def test_a_pin_that_is_missing_is_told(lock: ModuleType, copy: Path) -> None:
    path = copy / "requirements.lock"
    path.write_text(re.sub(r"^vllm==.*\n.*\n", "", path.read_text(), flags=re.M))
    assert [fault.split(",")[0] for fault in lock.faults(copy)] == [
        "omni-0.30-cu130/requirements.lock has vllm==None"
    ] * 2


def test_a_pin_without_a_hash_is_told(lock: ModuleType, copy: Path) -> None:
    path = copy / "requirements.lock"
    path.write_text(re.sub(r"^(vllm==\S+) \\\n.*\n", r"\1\n", path.read_text(), flags=re.M))
    assert lock.faults(copy) == ["omni-0.30-cu130/requirements.lock has no hash for vllm"]


def test_another_torch_than_the_runtimes_is_told(lock: ModuleType, copy: Path) -> None:
    path = copy / "runtime.toml"
    path.write_text(path.read_text().replace('torch = "2.13.0+cu130"', 'torch = "2.12.0+cu130"'))
    assert lock.faults(copy) == [
        "omni-0.30-cu130: requirements.in wants torch==2.13.0, runtime.toml 2.12.0+cu130"
    ]
