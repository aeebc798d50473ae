"""Everything the doctor says about one host and one profile."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

from framekeeper import __version__
from framekeeper.checkpoint import layout
from framekeeper.doctor.container import container_findings
from framekeeper.doctor.driver import driver_findings
from framekeeper.doctor.environment import environment_findings
from framekeeper.doctor.finding import Finding, few, gravest_first
from framekeeper.doctor.host import read_host
from framekeeper.doctor.probed import probe_findings
from framekeeper.doctor.probing import run_probes
from framekeeper.doctor.readings import Readings
from framekeeper.doctor.runtime import all_installed, pins, runtime_findings
from framekeeper.doctor.weights.check import check_headers, told_bytes
from framekeeper.engine.host import engine_environment
from framekeeper.profiles.commands import stand_in_cards
from framekeeper.profiles.facts import HostFacts
from framekeeper.profiles.faults import Fault, ProfileError
from framekeeper.profiles.launch import Launch, resolve
from framekeeper.profiles.load import VARIABLE, examine, load_profile
from framekeeper.profiles.schema import Profile
from framekeeper.settings import Settings

LOCKS = Path("docker/runtimes")
"""Where the runtimes' locks lie in a checkout; where they are not at hand, versions go by the rules alone."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Examination:
    """What was read and what it means, the gravest first. `fast` says that no probe was run."""

    profile: Profile
    readings: Readings
    findings: tuple[Finding, ...]
    fast: bool

    @property
    def fatal(self) -> tuple[Finding, ...]:
        """What an engine will not run with."""
        return tuple(finding for finding in self.findings if finding.severity == "fatal")

    def record(self) -> dict[str, Any]:
        """As plain data, for JSON; `readings` can be judged again."""
        return {
            "version": __version__,
            "profile": self.profile.name,
            "fast": self.fast,
            "findings": [finding.record() for finding in self.findings],
            "readings": self.readings.model_dump(mode="json"),
        }


def examine_host(
    settings: Settings, name: str, *, fast: bool = False, recorded: Readings | None = None
) -> Examination:
    """Read this host, or judge `recorded` readings. Raises ProfileError where there is no such profile.

    `fast` starts no process of the engine's Python and takes about a second; recorded hosts are never probed.
    """
    named_by = VARIABLE if name == settings.profile else "PROFILE"
    profile = load_profile(name, settings.profiles, named_by=named_by)
    if settings.model:
        profile = profile.model_copy(update={"model": settings.model})
    prefix = engine_environment(settings, profile.runtime)
    locked = pins(LOCKS / profile.runtime / "requirements.lock")
    if recorded is not None:
        # What was not asked for then is not missing now.
        locked = {each: version for each, version in locked.items() if each in recorded.installed}
    readings = recorded or _read(settings, profile, prefix, locked, fast)
    launch = _stand_in(settings, profile, readings)
    found = driver_findings(profile, readings)
    found += container_findings(profile, readings, least_media=settings.min_free_bytes)
    found += _rule_findings(name, settings.profiles, readings)
    found += runtime_findings(profile, readings, prefix, locked)
    found += environment_findings(readings.environment, launch, None if fast or recorded else prefix)
    if recorded is None:
        found += _weights(Path(launch.model), profile)
    if not (fast or recorded) and profile.backend != "fault" and readings.installed:
        probed = run_probes(
            profile, _real(settings, profile, readings, launch), readings, prefix / "bin" / "python"
        )
        readings = readings.model_copy(update={"probes": probed})
    found += probe_findings(profile, readings)
    return Examination(
        profile=profile, readings=readings, findings=tuple(gravest_first(few(found))), fast=fast
    )


def _read(settings: Settings, profile: Profile, prefix: Path, locked: dict[str, str], fast: bool) -> Readings:
    return read_host(
        media=settings.media_directory,
        caches=settings.cache_directory,
        installed=all_installed(prefix, locked),
        engine=prefix,
        environment=dict(os.environ),
        cards=profile.devices.kind == "cuda",
        fast=fast,
    )


def _rule_findings(name: str, profiles: Path, readings: Readings) -> list[Finding]:
    """Rules that the profile breaks on this host, its rungs included."""
    try:
        profile, faults = examine(name, profiles, readings.facts())
    except ProfileError as error:
        faults = list(error.faults)
    else:
        if not faults:
            return [
                Finding(check="profile", severity="ok", seen=f"{profile.name} breaks no rule on this host")
            ]
    return [_of_rule(fault) for fault in faults]


def _of_rule(fault: Fault) -> Finding:
    return Finding(
        check=fault.rule or "profile",
        severity="fatal" if fault.severity == "refuse" else "warn",
        seen=f"{fault.where}: {fault.key}: {fault.value}",
        why=fault.reason,
        advice=f"set {fault.advice}",
        evidence=fault.evidence[0] if fault.evidence else "",
    )


def _facts(settings: Settings, readings: Readings) -> HostFacts:
    return dataclasses.replace(
        readings.facts(),
        inherited=dict(os.environ) | readings.environment,
        base_directory=Path.cwd(),
        run_directory=settings.run_directory,
        cache_directory=settings.cache_directory,
    )


def _stand_in(settings: Settings, profile: Profile, readings: Readings) -> Launch:
    """What an engine would get. Cards are stood in for, and limits left out: a sick host has too few."""
    facts = HostFacts(
        cards=stand_in_cards(profile, 1),
        inherited=readings.environment,
        base_directory=Path.cwd(),
        run_directory=settings.run_directory,
        cache_directory=settings.cache_directory,
    )
    return resolve(profile, facts)


def _real(settings: Settings, profile: Profile, readings: Readings, otherwise: Launch) -> Launch:
    """The launch on this host's cards, for probes; on a host that is refused, one that sees all cards."""
    try:
        return resolve(profile, _facts(settings, readings))
    except ProfileError:
        environment = dict(otherwise.environment)
        if profile.devices.kind == "cuda":
            environment.pop("CUDA_VISIBLE_DEVICES", None)
        for name in ("PATH", "LD_LIBRARY_PATH"):
            if name in os.environ:
                environment[name] = os.environ[name]
        return dataclasses.replace(otherwise, environment=environment)


def _weights(directory: Path, profile: Profile) -> list[Finding]:
    if profile.backend == "fault":
        return []
    # The launcher's package brings the database's tools along.
    from framekeeper.launcher.checkpoint import is_wanted  # noqa: PLC0415

    if is_wanted(directory):
        return [Finding(check="weights", severity="ok", seen=f"{directory} is made at the first start")]
    files, fault = layout.listed(directory)
    if directory / layout.INDEX not in files:
        return [
            Finding(
                check="weights",
                severity="fatal",
                seen=fault or f"{directory} holds no {layout.INDEX}",
                why="engines run offline and fetch nothing",
                advice=f"fetch {profile.model} beforehand, let this user read it, or set FRAMEKEEPER_MODEL",
                evidence=f"{_OMNI}/issues/5412",
            )
        ]
    checkpoint = check_headers(directory)
    seen = f"{directory}: {checkpoint.tensors:,} tensors, {told_bytes(checkpoint.bytes)}, headers read"
    return [*checkpoint.findings, Finding(check="weights", severity="ok", seen=seen)]


_OMNI = "https://github.com/vllm-project/vllm-omni"
