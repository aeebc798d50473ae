"""The installer of engine environments: what it refuses, what it says, and that it can be repeated."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import re
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "docker" / "runtimes"
SCRIPT = FOLDER / "install.py"
RUNTIME = "omni-0.30-cpu"


def install(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, SCRIPT, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("runtime_install", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def stamped(module: ModuleType, into: Path) -> Path:
    """What an installation leaves, without the hundred seconds."""
    (into / "bin").mkdir(parents=True)
    (into / "bin" / "python").write_text("")
    (into / module.STAMP).write_text(module.fingerprint(RUNTIME, None) + "\n")
    return into


def test_unknown_runtime_names_those_there_are(tmp_path: Path) -> None:
    result = install("omni-9", "--into", tmp_path / "venv")
    assert result.returncode == 2
    assert RUNTIME in result.stderr


def test_wrong_python_is_told_with_what_to_do(tmp_path: Path) -> None:
    fake = tmp_path / "python3.9"
    fake.write_text("#!/bin/sh\necho 3.9\n")
    fake.chmod(0o755)
    result = install(RUNTIME, "--into", tmp_path / "venv", "--python", fake)
    assert result.returncode == 2
    assert "needs Python 3.11" in result.stderr
    assert "--python" in result.stderr
    assert not (tmp_path / "venv").exists()


def test_somebodys_directory_is_left_alone(tmp_path: Path) -> None:
    into = tmp_path / "data"
    into.mkdir()
    (into / "precious").write_text("x")
    result = install(RUNTIME, "--into", into)
    assert result.returncode == 2
    assert "not a virtual environment" in result.stderr
    assert [path.name for path in into.iterdir()] == ["precious"]


def test_second_run_does_nothing_in_less_than_a_second(module: ModuleType, tmp_path: Path) -> None:
    into = stamped(module, tmp_path / "venv")
    began = time.monotonic()
    result = install(RUNTIME, "--into", into)
    assert time.monotonic() - began < 1
    assert result.returncode == 0
    assert result.stdout.strip() == f"{RUNTIME} is installed in {into}"


def test_a_changed_lock_is_not_current(
    module: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    into = stamped(module, tmp_path / "venv")
    copy = tmp_path / "runtimes" / RUNTIME
    copy.mkdir(parents=True)
    for name in ("requirements.lock", "runtime.toml"):
        (copy / name).write_bytes((FOLDER / RUNTIME / name).read_bytes())
    monkeypatch.setattr(module, "HERE", copy.parent)
    assert module.is_current(into, module.fingerprint(RUNTIME, None))
    with (copy / "requirements.lock").open("a") as lock:
        lock.write("# one more line\n")
    assert not module.is_current(into, module.fingerprint(RUNTIME, None))


@pytest.mark.slow
def test_a_failed_stage_shows_pips_words_and_can_be_repeated(tmp_path: Path) -> None:
    into = tmp_path / "venv"
    closed = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", "PIP_CONFIG_FILE": os.devnull}
    first = install(RUNTIME, "--into", into, **closed)
    assert first.returncode == 1
    assert "torch==2.13.0+cpu" in first.stderr
    assert str(tmp_path / "venv.log") in first.stderr
    assert "[1/5] environment" in first.stdout
    assert not list(into.glob("*.sha256")), "a stamp is written only at the end"
    second = install(RUNTIME, "--into", into, **closed)
    assert second.returncode == 1
    assert "(continued)" in second.stdout


def test_a_second_installer_waits_for_the_first(module: ModuleType, tmp_path: Path) -> None:
    into = tmp_path / "venv"
    with (tmp_path / ".venv.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with subprocess.Popen(
            [sys.executable, SCRIPT, RUNTIME, "--into", into, "--python", "python3.11"],
            stdout=subprocess.PIPE,
            text=True,
        ) as waiting:
            assert waiting.stdout is not None
            assert "another installation" in waiting.stdout.readline()
            stamped(module, into)
            fcntl.flock(lock, fcntl.LOCK_UN)
            assert waiting.wait(10) == 0


def test_lock_pins_every_package_with_a_hash_and_no_place() -> None:
    text = (FOLDER / RUNTIME / "requirements.lock").read_text()
    entries = [line for line in text.splitlines() if line and not line.startswith(("#", " "))]
    assert all(re.fullmatch(r"[a-z0-9-]+==\S+ \\", line) for line in entries)
    assert text.count("--hash=sha256:") == len(entries)
    assert "://" not in text
    assert not re.search(r"^torch==", text, flags=re.MULTILINE), "torch is a step of its own"
    wanted = re.findall(r"^\S+==\S+", (FOLDER / RUNTIME / "requirements.in").read_text(), flags=re.MULTILINE)
    assert set(wanted) <= {line.split()[0] for line in entries}


def test_runtime_says_what_it_is(module: ModuleType) -> None:
    runtime = tomllib.loads((FOLDER / RUNTIME / "runtime.toml").read_text())
    assert runtime["name"] == RUNTIME
    assert runtime["torch"].endswith("+cpu")
    assert hashlib.sha256().digest_size * 2 == len(module.fingerprint(RUNTIME, None))
