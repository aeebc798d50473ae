"""The versions that this package was written for; any other is refused.

Each shim stands in for something that another version has, or has differently: on it the shim would be wrong
without anything failing.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import metadata

WRITTEN_FOR = {
    "torch": "2.4.1",
    "vllm": "0.14.0",
    "vllm-omni": "0.14.0",
    "diffusers": "0.36.0",
    "transformers": "4.57.6",
}


class WrongVersion(Exception):
    """The environment holds a version that the shims were not written for."""


def installed(name: str) -> str | None:
    """The version of a distribution in this environment, None without one."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def require(names: Iterable[str]) -> dict[str, str]:
    """Versions of these distributions; raises WrongVersion, naming every one that is not as WRITTEN_FOR says.

    A local part counts for nothing: 2.4.1+cu124 is 2.4.1.
    """
    found = {name: installed(name) for name in names}
    wrong = [
        f"{name} is {version or 'not installed'}, must be {WRITTEN_FOR[name]}"
        for name, version in found.items()
        if version is None or version.split("+", maxsplit=1)[0] != WRITTEN_FOR[name]
    ]
    if wrong:
        raise WrongVersion(
            f"this environment is not the runtime torch-2.4.1-cu124: {'; '.join(wrong)}. "
            "Install the runtime anew, or name another runtime in the profile."
        )
    return {name: version for name, version in found.items() if version is not None}
