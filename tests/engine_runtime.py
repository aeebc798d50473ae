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
