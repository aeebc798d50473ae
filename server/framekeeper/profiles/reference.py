"""docs/profiles.md, written from the profiles, the schema and the rules; a test fails when it is stale."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from framekeeper.profiles import rules
from framekeeper.profiles.load import load_profile, profile_names
from framekeeper.profiles.memory import GIB, budget
from framekeeper.profiles.schema import Profile

_HEAD = """\
# Profiles

<!-- Written by `framekeeper profile reference`; change the profiles, the schema or the rules instead. -->

A profile is one YAML file in `configs/profiles`: everything that is decided about an engine.
`FRAMEKEEPER_PROFILE=name` picks one. It is checked as a whole before anything holds a card; every fault is
named at once, with its line, the reason, what to set instead, and the public evidence.

    framekeeper profile list                  # what there is, and what was verified where
    framekeeper profile check [NAME ...]      # all faults of all profiles; exit code 2
    framekeeper profile show NAME             # the environment and the arguments a worker gets
    framekeeper profile fit NAME --gpu-memory 24GiB
    framekeeper profile diff A B

`extends: NAME` starts from another profile of the directory; sections are merged key by key, `verified` and
`accept_risk` are not inherited. A change of `fallbacks` holds on top of those before it, and every rung
must be a legal profile by itself.
"""
_VERIFIED = """\
Verified says where exactly this profile ran: `no`, `cpu`, `memory` (on a larger card with the rest filled),
or `hardware`. Needed memory is the memory model's, for one device at the largest admitted shape. The model
was fitted on an H200 at 832x480 and checked there at 1280x720, with fp8 and with offload: what torch reserves
for a whole video is within 10 % of it in twelve measured rows. An asterisk marks numbers that no measurement
covers (TI2V-5B, `offload: model`, several devices).
"""


def _profiles(directory: Path) -> Iterator[str]:
    yield "## The profiles\n\n" + _VERIFIED
    yield "| profile | serves | runtime | devices | weights | admits | needs | verified |"
    yield "|---|---|---|---|---|---|---|---|"
    for name in profile_names(directory):
        yield _row(load_profile(name, directory))
    yield ""


def needed_memory(profile: Profile) -> str:
    """ "20.2 GiB", with an asterisk where extrapolated, empty where there is nothing to say."""
    needed = budget(profile)
    return "" if needed is None else f"{needed.bytes / GIB:.1f} GiB{'' if needed.measured else ' *'}"


def weights(profile: Profile) -> str:
    """How the weights lie: offload, quantisation and compile in a few words."""
    words: list[str] = ["resident" if profile.offload == "none" else profile.offload]
    words += [profile.quantization] if profile.quantization != "none" else []
    words += [f"compile {profile.compile}"] if profile.compile != "off" else []
    return ", ".join(words)


def _row(profile: Profile) -> str:
    cells = (
        f"`{profile.name}`",
        profile.serves,
        profile.runtime,
        f"{profile.devices.count} {profile.devices.kind}",
        weights(profile),
        f"{profile.admits.size}, {profile.admits.num_frames} frames",
        needed_memory(profile),
        profile.verified,
    )
    return f"| {' | '.join(cells)} |"


def _rules() -> Iterator[str]:
    yield "## The rules\n"
    yield "A rule that says so may be broken with `accept_risk: {<id>: <reason>}` on the runtimes where"
    yield "that was measured. Warnings are printed and refuse nothing.\n"
    for rule in (*rules.RULES, rules.ACCEPTANCE):
        notes = []
        if rule.severity == "warn":
            notes.append("Warning only.")
        if rule.runtimes:
            notes.append(f"Holds on {', '.join(sorted(rule.runtimes))}.")
        if rule.measured_on:
            notes.append(f"Acceptable on {', '.join(sorted(rule.measured_on))}.")
        yield f"### `{rule.id}`\n"
        yield " ".join([rule.summary, *notes]) + "\n"
        yield "".join(f"- {url}\n" for url in rule.evidence)


def _keys() -> Iterator[str]:
    yield "## The keys\n"
    for name, field in Profile.model_fields.items():
        if name == "name":
            continue
        section = field.annotation
        if isinstance(section, type) and hasattr(section, "model_fields"):
            yield f"- `{name}`:"
            for inner, inside in section.model_fields.items():
                yield f"  - `{inner}`: {inside.description}"
        else:
            yield f"- `{name}`: {field.description}"
    yield ""


def text(directory: Path) -> str:
    """The whole document. Raises ProfileError when a profile of the directory is not legal."""
    return "\n".join([_HEAD, *_profiles(directory), *_keys(), *_rules()]).rstrip() + "\n"
