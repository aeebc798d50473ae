"""The engine's own Python for tests: the test environment has no torch."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parent.parent


def engine_python() -> Path:
    """FRAMEKEEPER_ENGINE_PYTHON or the CPU runtime in this checkout; skips the test when there is neither."""
    path = Path(
        os.environ.get(
            "FRAMEKEEPER_ENGINE_PYTHON", PROJECT / ".runtimes" / "omni-0.30-cpu" / "bin" / "python"
        )
    )
    if not path.exists():
        pytest.skip(f"no engine environment ({path}); make one with docker/runtimes/install.py")
    return path


def torch241_python() -> Path:
    """FRAMEKEEPER_ENGINE_PYTHON_TORCH241 or that runtime in this checkout; skips the test without one."""
    path = Path(
        os.environ.get(
            "FRAMEKEEPER_ENGINE_PYTHON_TORCH241",
            PROJECT / ".runtimes" / "torch-2.4.1-cu124" / "bin" / "python",
        )
    )
    if not path.exists():
        pytest.skip(f"no environment of torch-2.4.1-cu124 ({path}); make test-runtimes makes one")
    return path
