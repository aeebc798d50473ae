"""Small volumes that tests fill, take away and make read-only; for root."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


def mount(*arguments: str) -> None:
    """Mount, or skip the test where that is not possible."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a volume")
    done = subprocess.run(["mount", *arguments], check=False, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"nothing can be mounted here: {done.stderr.strip()}")


def mounted(path: Path, size: int) -> Iterator[Path]:
    """A volume of so many bytes at `path`, for a fixture; whatever is mounted there goes in the end."""
    path.mkdir()
    mount("-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path))
    yield path
    while subprocess.run(["umount", "--lazy", str(path)], check=False, capture_output=True).returncode == 0:
        pass
