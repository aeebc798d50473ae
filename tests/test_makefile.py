"""The Makefile's own logic; what its targets start is tested elsewhere."""

import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[1]


def make_setup(environment: Path) -> subprocess.Popen[str]:
    """`make setup` with an environment elsewhere and a pip that only says what it was asked."""
    return subprocess.Popen(
        ["make", "setup", f"VENV={environment}", f"PYTHON={sys.executable}", "PIP=sleep 0.5; echo asked to"],
        cwd=PROJECT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.slow
def test_two_that_set_up_at_once_do_each_step_once(tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    for process in [make_setup(environment) for _ in range(2)]:
        text, _ = process.communicate(timeout=120)
        assert process.returncode == 0, text
    asked = [line for line in (environment / "setup.log").read_text().splitlines() if "asked to" in line]
    assert len(asked) == 3, asked


@pytest.mark.slow
def test_a_step_that_failed_shows_its_end_and_is_repeated(tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    command = ["make", "setup", f"VENV={environment}", f"PYTHON={sys.executable}"]
    failed = subprocess.run(
        [*command, "PIP=echo no network; false"], cwd=PROJECT, capture_output=True, text=True, check=False
    )
    assert failed.returncode == 2
    assert "no network" in failed.stdout
    assert f"The whole output is in {environment}/setup.log." in failed.stdout
    assert not (environment / "run.stamp").exists()
    text, _ = make_setup(environment).communicate(timeout=120)
    assert "packages of gateway and supervisor" in text
    assert (environment / "dev.stamp").exists()
