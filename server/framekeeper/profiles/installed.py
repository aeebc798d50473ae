"""Versions in an engine environment, read from its metadata without starting its Python."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import distributions
from pathlib import Path

# What the rules compare with the runtime.
PACKAGES = ("torch", "vllm", "vllm-omni", "diffusers", "transformers")


def installed_versions(environment: Path, packages: Iterable[str] = PACKAGES) -> dict[str, str]:
    """Version by distribution name of a virtual environment (or a prefix such as /usr/local).

    Packages that are not there are left out, and so is everything when there is no such environment.
    """
    wanted = {_normal(name): name for name in packages}
    libraries = [str(path) for path in sorted(environment.glob("lib/python3.*/*-packages"))]
    found = {}
    for distribution in distributions(path=libraries):
        name = wanted.get(_normal(distribution.metadata["Name"] or ""))
        if name is not None:
            found[name] = distribution.version
    return found


def _normal(name: str) -> str:
    return name.lower().replace("_", "-")
