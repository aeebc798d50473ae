"""The versions that our adapters were written for; any other is refused.

Each shim stands in for something that another version has, or has differently: on it the shim would be wrong
without anything failing.
"""

from __future__ import annotations

from importlib import metadata

OMNI_014 = {
    "torch": "2.4.1",
    "vllm": "0.14.0",
    "vllm-omni": "0.14.0",
    "diffusers": "0.36.0",
    "transformers": "4.57.6",
}
"""vllm-omni in the runtime torch-2.4.1-cu124."""

DIFFUSERS_036 = {name: OMNI_014[name] for name in ("torch", "diffusers", "transformers")}
"""diffusers in the same runtime."""

DIFFUSERS_040 = {"torch": "2.13.0", "diffusers": "0.40.0", "transformers": "5.14.1"}
"""diffusers in the runtimes omni-0.30-cpu and omni-0.30-cu130; nothing is missing there."""


class WrongVersion(Exception):
    """The environment holds a version that the adapter was not written for."""


def installed(name: str) -> str | None:
    """The version of a distribution in this environment, None without one."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def require(*sets: dict[str, str]) -> dict[str, str]:
    """Installed versions of the set that they agree with; raises WrongVersion, naming every one that differs.

    A local part counts for nothing: 2.4.1+cu124 is 2.4.1.
    """
    differences: list[list[str]] = []
    for wanted in sets:
        found = {name: installed(name) for name in wanted}
        wrong = [
            f"{name} is {version or 'not installed'}, must be {wanted[name]}"
            for name, version in found.items()
            if version is None or version.split("+", maxsplit=1)[0] != wanted[name]
        ]
        if not wrong:
            return {name: version for name, version in found.items() if version is not None}
        differences.append(wrong)
    least = min(differences, key=len)
    raise WrongVersion(
        f"the engine's environment is none that this backend was written for: {'; '.join(least)}. "
        "Install the runtime anew, or name another runtime in the profile."
    )
