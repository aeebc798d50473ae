"""A process that becomes what the supervisor would start: a profile's launch, and a worker's environment."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from framekeeper.engine import host
from framekeeper.profiles.launch import Launch, resolve
from framekeeper.profiles.load import load_profile
from framekeeper.settings import Settings


def enter(profiles: Path, name: str) -> Launch:
    """Take on the environment of profile `name`; to be called before anything imports torch."""
    settings = Settings(profiles=profiles, var=Path(tempfile.mkdtemp()))
    launch = resolve(load_profile(name, settings.profiles), host.gather(settings))
    for directory in launch.directories:
        directory.mkdir(parents=True, exist_ok=True)
    for variable in [each for each in os.environ if each.startswith(("TORCH", "PYTORCH", "CUDA"))]:
        del os.environ[variable]
    os.environ.update(launch.environment)
    return launch
