"""A minute of the soak. `make soak` runs ten."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from soak.run import Soak

pytestmark = pytest.mark.slow

SECONDS = 60


@pytest.mark.timeout(480)
def test_a_minute_of_faults_loses_nothing_and_leaves_nothing(open_directory: Path) -> None:
    seed = secrets.randbelow(1_000_000)
    print(f"seed {seed}: repeat with `PYTHONPATH=tests python -m soak --seconds {SECONDS} --seed {seed}`")
    report = Soak(open_directory, seconds=SECONDS, seed=seed).run()
    report.show()
    assert report.problems == []
    jobs = report.sections["jobs"]
    assert jobs["accepted"] > 10, "the clients did something"
    assert jobs["completed"] > 0
    assert report.sections["incidents"]["all"] > 0
