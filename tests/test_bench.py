"""The short form of a bench on the fault backend, which exits with 1 when something is wrong."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[1]

pytestmark = pytest.mark.slow


def run(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=PROJECT, capture_output=True, text=True, check=False, timeout=280
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    return done.stdout


def test_a_crowd_meets_no_server_error_and_gateways_do_not_grow() -> None:
    output = run(
        "bench/load.py", "--fault", "--no-peer", "--no-record",
        "--seconds", "12", "--clients", "60", "--listeners", "100",
    )  # fmt: skip
    assert "60 clients, 100 listeners" in output
