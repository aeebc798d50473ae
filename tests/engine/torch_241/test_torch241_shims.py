"""What engine/torch_241 supplies and replaces, by behaviour, in that runtime's own Python."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from engine_runtime import engine_python, torch241_python

HERE = Path(__file__).parent
NAMES = [
    line.removeprefix("def ").split("(")[0]
    for file in ("checks.py", "offload_checks.py")
    for line in (HERE / file).read_text().splitlines()
    if line.startswith("def check_")
]

pytestmark = [pytest.mark.runtimes, pytest.mark.slow]


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str | None]:
    result = tmp_path_factory.mktemp("checks") / "result.json"
    # As bare as the supervisor's for a CPU, where no visible card makes vllm look for Triton leniently.
    environment = {"PATH": os.environ["PATH"], "HOME": str(result.parent), "CUDA_VISIBLE_DEVICES": ""}
    run = subprocess.run(
        [torch241_python(), HERE / "checks.py", result],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert run.returncode == 0, run.stderr[-4000:]
    found: dict[str, str | None] = json.loads(result.read_text())
    return found


@pytest.mark.parametrize("name", NAMES)
def test_in_the_runtime(outcome: dict[str, str | None], name: str) -> None:
    assert outcome[name] is None, outcome[name]


def test_every_check_was_run(outcome: dict[str, str | None]) -> None:
    assert list(outcome) == NAMES
    assert len(NAMES) > 15


def test_the_schemas_expected_are_those_of_torch_2_13() -> None:
    run = subprocess.run(
        [engine_python(), HERE / "schema_table.py"], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
