"""The engine's environment: what is installed against the lock, what compiling needs, the caches."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from framekeeper.doctor.finding import Finding
from framekeeper.doctor.readings import Readings, joined
from framekeeper.profiles.installed import installed_versions
from framekeeper.profiles.runtimes import RUNTIMES, version_tuple
from framekeeper.profiles.schema import Profile

_PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)")
_OMNI_PAIR = "https://github.com/vllm-project/vllm-omni/pull/2935"
_OTHERS_WRITE = 0o022
_MOST_DAMAGED = 3


def pins(lock: Path) -> dict[str, str]:
    """Version by name of a requirements.lock; {} where there is none."""
    try:
        lines = lock.read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    return {match[1]: match[2] for line in lines if (match := _PIN.match(line))}


def runtime_findings(
    profile: Profile, readings: Readings, engine: Path, locked: dict[str, str]
) -> list[Finding]:
    """All about the engine's environment at `engine`."""
    if profile.backend == "fault":
        return []
    if not readings.installed:
        return [
            Finding(
                check="runtime",
                severity="fatal",
                seen=f"runtime {profile.runtime} is not installed at {engine}",
                why="no engine can start without it",
                advice=f"python docker/runtimes/install.py {profile.runtime} --into {engine}, or its image",
            )
        ]
    return [
        *_versions(profile, readings, engine, locked),
        *_pair(readings),
        *_compiling(profile, readings),
        *_caches(readings),
    ]


def _versions(
    profile: Profile, readings: Readings, engine: Path, locked: dict[str, str]
) -> Iterator[Finding]:
    runtime = RUNTIMES.get(profile.runtime)
    wanted = dict(locked)
    if runtime is not None:
        wanted["torch"] = runtime.torch
    there = readings.installed
    wrong = sorted(
        f"{name} {there[name]} instead of {version}"
        for name, version in wanted.items()
        if name in there and version_tuple(there[name]) != version_tuple(version)
    )
    missing = sorted(name for name in wanted if name not in there)
    if wrong or missing:
        both = [*wrong, *(f"{name} missing" for name in missing)]
        yield Finding(
            check="runtime-versions",
            severity="warn",
            seen=f"{engine} differs from its lock in {len(both)} package(s): {joined(both)}",
            why="what was verified is the lock; other versions of this stack fail in other ways",
            advice="install it again from docker/runtimes/<runtime>/requirements.lock, with nothing on top",
        )
    elif wanted:
        scope = f"all {len(wanted)} packages are" if locked else "torch is"
        yield Finding(check="runtime-versions", severity="ok", seen=f"{scope} as the runtime pins them")


def _pair(readings: Readings) -> Iterator[Finding]:
    vllm, omni = readings.installed.get("vllm"), readings.installed.get("vllm-omni")
    if vllm and omni and version_tuple(vllm)[:2] != version_tuple(omni)[:2]:
        yield Finding(
            check="runtime-pair",
            severity="fatal",
            seen=f"vllm {vllm} and vllm-omni {omni} are no pair",
            why="vllm-omni only warns about it, and fails later inside vllm",
            advice=f"vllm {omni}, as the runtime's lock has it",
            evidence=_OMNI_PAIR,
        )


def _compiling(profile: Profile, readings: Readings) -> Iterator[Finding]:
    if profile.compile == "off":
        return
    if readings.compiler is None:
        yield Finding(
            check="compiler",
            severity="fatal",
            seen=f"there is no C compiler, and the profile has compile: {profile.compile}",
            why="Triton builds its launcher with one: `Failed to find C compiler`",
            advice="gcc in the image, or compile: off",
            evidence="https://github.com/pytorch/pytorch/pull/170235",
        )
    if readings.python_headers is False:
        yield Finding(
            check="python-headers",
            severity="fatal",
            seen="Python.h of the engine's Python is missing",
            why="Triton's launcher includes it; the compiler ends with `Python.h: No such file or directory`",
            advice="python3-dev of the same version in the image, or compile: off",
            evidence="https://github.com/pytorch/pytorch/issues/97146",
        )


def _caches(readings: Readings) -> Iterator[Finding]:
    disk = readings.caches
    for sentence in readings.damaged[:_MOST_DAMAGED]:
        yield Finding(
            check="caches-damaged",
            severity="warn",
            seen=sentence,
            why="an engine that finds it ends in its first step, after a full disk or a lost power",
            advice="framekeeper doctor --clear-caches, while no engine runs",
            evidence="https://github.com/vllm-project/vllm/pull/18956",
        )
    if disk is None or disk.mode is None:
        return
    if disk.owner not in (None, readings.user) or disk.mode & _OTHERS_WRITE:
        yield Finding(
            check="caches-shared",
            severity="warn",
            seen=f"{disk.path} belongs to user {disk.owner} with mode {disk.mode:o}",
            why="compiled code is run as it lies there, and engines that share a cache break each other's",
            advice=f"a directory of this user alone: chmod 700 {disk.path}",
            evidence="https://github.com/vllm-project/vllm/issues/6180",
        )
    elif not readings.damaged:
        yield Finding(check="caches", severity="ok", seen=f"{disk.path} is this user's, nothing is damaged")


def all_installed(engine: Path, locked: dict[str, str]) -> dict[str, str]:
    """Versions in the engine's environment of what the lock and the rules name."""
    return installed_versions(engine, {*locked, "torch", "vllm", "vllm-omni", "diffusers", "transformers"})
