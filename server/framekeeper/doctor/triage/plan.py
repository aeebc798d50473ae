"""What triage will try: the configured launch, and the same with one layer after the other taken away."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from framekeeper.profiles.facts import HostFacts
from framekeeper.profiles.fallbacks import merge
from framekeeper.profiles.faults import ProfileError
from framekeeper.profiles.launch import Launch, resolve
from framekeeper.profiles.schema import Parallel, Profile

StepName = Literal["configured", "caches", "compile", "quantization", "processes", "direct", "weights"]
How = Literal["worker", "direct", "weights"]
Change = dict[str, Any]

#: The small job's frame, unless the profile's own is smaller: whole tokens for every Wan2.2 model.
SMALL = 256
SMALL_FRAMES = 9
#: Weights that do not fit without what is taken away may still fit with their layers in host memory.
_ROOM: Change = {"offload": "layerwise"}
_ONE_DEVICE: Change = {
    "executor": "in_process",
    "devices": {"count": 1},
    "parallel": dict.fromkeys(Parallel.model_fields, 1),
}


@dataclass(frozen=True, kw_only=True)
class Step:
    """One try. `layer` is what it leaves out, `changed` all that differs from the step before.

    Either `skipped` says why it is not tried, or `launch` is what to start.
    """

    name: StepName
    layer: str
    how: How
    changed: tuple[str, ...] = ()
    launch: Launch | None = None
    skipped: str | None = None


def small_job(profile: Profile, *, deadline: float | None = None, whole: bool = False) -> Profile:
    """The profile with a small warm-up, which is triage's job: small in pixels, both experts as configured.

    With `whole` the profile's own warm-up shape stays. `deadline` (seconds) replaces those of load and job.
    """
    change: Change = {"fallbacks": ()}
    if not whole:
        defaults = profile.defaults
        large = defaults.width * defaults.height > SMALL * SMALL
        change["warm_up"] = {
            "size": f"{SMALL}x{SMALL}" if large else defaults.size,
            "num_frames": min(SMALL_FRAMES, profile.admits.num_frames),
        }
    if deadline is not None:
        change = merge(
            change,
            {"deadlines": {"load_seconds": deadline}, "warm_up": {"deadline_seconds": deadline}},
        )
    return Profile.model_validate(merge(profile.model_dump(), change))


def plan(profile: Profile, facts: HostFacts, fresh: Path) -> list[Step]:
    """All steps in order, each on top of those before it; `fresh` is where empty caches are made.

    Raises ProfileError when the configured profile cannot be started on this host at all.
    """
    configured = resolve(profile, facts)
    steps = [Step(name="configured", layer="nothing", how="worker", launch=configured)]
    steps.append(_caches(configured, fresh))
    steps += _without(profile, facts, fresh)
    last = next(step.launch for step in reversed(steps) if step.launch is not None)
    direct = _with_caches(last, fresh / "direct")
    steps.append(
        Step(
            name="direct",
            layer="Framekeeper's worker and its protocol",
            how="direct",
            changed=("backend called directly",),
            launch=direct,
        )
    )
    steps.append(_weights(direct))
    return steps


def _caches(configured: Launch, fresh: Path) -> Step:
    layer = "the compile caches"
    directory = configured.cache_directory
    if not any(path.is_file() for path in directory.rglob("*")):
        return Step(name="caches", layer=layer, how="worker", skipped=f"{directory} holds no caches")
    launch = _with_caches(configured, fresh / "caches")
    return Step(name="caches", layer=layer, how="worker", changed=("empty caches",), launch=launch)


def _with_caches(launch: Launch, directory: Path) -> Launch:
    """The launch with caches in another directory; what was in the old one stays as evidence."""
    old = str(launch.cache_directory)
    environment = {
        name: str(directory) + value.removeprefix(old) if value.startswith(old) else value
        for name, value in launch.environment.items()
    }
    directories = tuple(directory if each == launch.cache_directory else each for each in launch.directories)
    return dataclasses.replace(
        launch, environment=environment, cache_directory=directory, directories=directories
    )


def _without(profile: Profile, facts: HostFacts, fresh: Path) -> Iterator[Step]:
    """The steps that change the profile, each on top of those before it that are possible."""
    current = profile
    one: Change = dict(_ONE_DEVICE)
    if profile.devices.uuids != "auto":
        one["devices"] = {"count": 1, "uuids": profile.devices.uuids[:1]}
    alone = profile.executor == "in_process" and profile.devices.count == 1
    wanted: tuple[tuple[StepName, str, Change, str | None], ...] = (
        (
            "compile",
            "torch.compile",
            {"compile": "off"},
            "the profile compiles nothing" if profile.compile == "off" else None,
        ),
        (
            "quantization",
            f"quantisation ({profile.quantization})",
            {"quantization": "none"},
            "the profile quantises nothing" if profile.quantization == "none" else None,
        ),
        (
            "processes",
            "the executor's processes and what passes between devices",
            one,
            "the profile runs in one process on one device" if alone else None,
        ),
    )
    for name, layer, change, reason in wanted:
        if reason is not None:
            yield Step(name=name, layer=layer, how="worker", skipped=reason)
            continue
        try:
            lower, launch = _resolved(current, change, facts)
        except ProfileError as error:
            why = f"not possible on this host: {error.faults[0].key}: {error.faults[0].reason}"
            yield Step(name=name, layer=layer, how="worker", skipped=why)
            continue
        changed = differences(_flat(current), _flat(lower))
        current = lower
        launch = _with_caches(launch, fresh / name)
        yield Step(name=name, layer=layer, how="worker", changed=changed, launch=launch)


def _resolved(profile: Profile, change: Change, facts: HostFacts) -> tuple[Profile, Launch]:
    """The changed profile and its launch, with streamed layers where it does not fit otherwise."""
    lower = Profile.model_validate(merge(profile.model_dump(), change))
    try:
        return lower, resolve(lower, facts)
    except ProfileError as error:
        roomier = Profile.model_validate(merge(lower.model_dump(), _ROOM))
        try:
            return roomier, resolve(roomier, facts)
        except ProfileError:
            raise error from None


def _weights(launch: Launch) -> Step:
    reason = None
    if launch.backend == "fault":
        reason = "the fault backend has no weights"
    return Step(name="weights", layer="the weights", how="weights", launch=launch, skipped=reason)


def _flat(profile: Profile) -> dict[str, Any]:
    keys = ("compile", "quantization", "executor", "offload")
    flat: dict[str, Any] = {key: getattr(profile, key) for key in keys}
    flat["devices.count"] = profile.devices.count
    return flat | {f"parallel.{name}": size for name, size in profile.parallel.model_dump().items()}


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[str, ...]:
    """Such as "compile: regional -> off", for every key whose value is another; `-` where there is none."""
    return tuple(
        f"{key}: {before.get(key, '-')} -> {after.get(key, '-')}"
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key)
    )
