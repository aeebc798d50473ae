"""`framekeeper profile …`: list, check, show, fit, schema, reference, diff.

Exit codes: 0 fine, 2 a profile (or what was asked of it) is wrong, 1 anything else.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from rich.console import Console
from rich.table import Table

from framekeeper.profiles import json_schema, reference
from framekeeper.profiles.environment import examine_environment
from framekeeper.profiles.facts import Card, HostFacts
from framekeeper.profiles.faults import ProfileError
from framekeeper.profiles.launch import Launch, resolve
from framekeeper.profiles.load import ARGUMENT, VARIABLE, examine, load_profile, profile_names
from framekeeper.profiles.memory import GIB, budget, card_memory, largest_frames
from framekeeper.profiles.schema import Profile, parse_bytes
from framekeeper.settings import Settings, SettingsError, load

app = typer.Typer(help="Profiles: what an engine runs.", no_args_is_help=True, pretty_exceptions_enable=False)

Directory = Annotated[
    Path | None, typer.Option("--directory", help="Directory of profiles; default: FRAMEKEEPER_PROFILES.")
]
Here = Annotated[
    bool, typer.Option("--here", help="Also against this host: its cards, driver and environment.")
]
_WRONG = 2


def _settings() -> Settings:
    try:
        return load()
    except SettingsError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(_WRONG) from None


def _settings_directory(directory: Path | None) -> Path:
    chosen = directory or _settings().profiles
    if not chosen.is_dir():
        typer.echo(f"{chosen}: is not a directory of profiles. Set: FRAMEKEEPER_PROFILES.", err=True)
        raise typer.Exit(_WRONG)
    return chosen


def _refuse(error: ProfileError) -> typer.Exit:
    for fault in error.faults:
        typer.echo(("" if fault.severity == "refuse" else "warning: ") + str(fault), err=True)
    return typer.Exit(_WRONG)


def _profile(name: str | None, directory: Path | None) -> Profile:
    try:
        named_by = ARGUMENT if name else VARIABLE
        return load_profile(name or _settings().profile, _settings_directory(directory), named_by=named_by)
    except ProfileError as error:
        raise _refuse(error) from None


def _facts(here: bool) -> HostFacts:
    if not here:
        return HostFacts()
    # Imported late: only a host with an engine has what this reads.
    from framekeeper.engine.host import gather  # noqa: PLC0415

    return gather(_settings())


def stand_in_cards(profile: Profile, groups: int) -> tuple[Card, ...]:
    """Cards as the profile wants them, for showing a launch on a machine without."""
    capability = (profile.host.compute_capabilities or ("9.0",))[0]
    needed = budget(profile)
    memory = card_memory(profile) or (needed.bytes if needed else 0)
    # Room for the rounding between GB and what a card reports.
    memory = max(memory, needed.bytes if needed else 0)
    return tuple(
        Card(uuid=f"GPU-of-this-host-{index}", name="card", capability=capability, memory_bytes=memory)
        for index in range(groups * profile.devices.count)
    )


@app.command("list")
def list_profiles(directory: Directory = None) -> None:
    """All profiles: what they serve, what they need, where they were verified."""
    where = _settings_directory(directory)
    table = Table(
        "profile", "serves", "runtime", "devices", "weights", "admits", "needs", "verified", box=None
    )
    wrong: list[ProfileError] = []
    for name in profile_names(where):
        try:
            profile = load_profile(name, where)
        except ProfileError as error:
            wrong.append(error)
            table.add_row(name, "refused: framekeeper profile check " + name)
            continue
        table.add_row(
            name,
            profile.serves,
            profile.runtime,
            f"{profile.devices.count} {profile.devices.kind}",
            reference.weights(profile),
            f"{profile.admits.size}x{profile.admits.num_frames}",
            reference.needed_memory(profile),
            profile.verified,
        )
    Console(width=None if Console().is_terminal else 200).print(table)
    if wrong:
        raise typer.Exit(_WRONG)


@app.command()
def check(
    names: Annotated[list[str] | None, typer.Argument(help="Profiles; default: all.")] = None,
    directory: Directory = None,
    here: Here = False,
) -> None:
    """Print every fault of every named profile, then exit 2 if there was one."""
    where = _settings_directory(directory)
    facts = _facts(here)
    refused = False
    for name in names or profile_names(where):
        try:
            _, warnings = examine(name, where, facts)
        except ProfileError as error:
            _refuse(error)
            refused = True
        else:
            for warning in warnings:
                typer.echo(f"warning: {warning}", err=True)
            typer.echo(f"{name}: fine")
    if refused:
        raise typer.Exit(_WRONG)


def launch_record(launch: Launch) -> dict[str, Any]:
    """A launch as plain data, in the order people read it."""
    return {
        "profile": launch.profile.name,
        "group": launch.group,
        "rung": {"number": launch.rung, "name": launch.rung_name},
        "runtime": launch.runtime,
        "backend": launch.backend,
        "model": launch.model,
        "devices": list(launch.devices),
        "environment": dict(sorted(launch.environment.items())),
        "options": launch.options,
        "cache_directory": str(launch.cache_directory),
        "directories": [str(directory) for directory in launch.directories],
        "settings": launch.profile.model_dump(mode="json", exclude={"name", "extends", "fallbacks"}),
    }


@app.command()
def show(
    name: Annotated[str | None, typer.Argument(help="Profile; default: FRAMEKEEPER_PROFILE.")] = None,
    *,
    directory: Directory = None,
    here: Here = False,
    group: Annotated[int, typer.Option(min=0, help="Device group.")] = 0,
    rung: Annotated[int, typer.Option(min=0, help="Steps down the fallbacks.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of YAML.")] = False,
) -> None:
    """Everything a worker of this profile gets: environment, options, devices, deadlines."""
    profile = _profile(name, directory)
    facts = _facts(here)
    if facts.cards is None:
        facts = dataclasses.replace(facts, cards=stand_in_cards(profile, group + 1))
    try:
        launch = resolve(profile, facts, group=group, rung=rung)
    except ProfileError as error:
        raise _refuse(error) from None
    except IndexError as error:
        typer.echo(f"--rung {rung}: {error}", err=True)
        raise typer.Exit(_WRONG) from None
    for variable in examine_environment(facts.inherited, launch):
        typer.echo(f"warning: {variable}", err=True)
    record = launch_record(launch)
    typer.echo(
        json.dumps(record, indent=2) if as_json else yaml.safe_dump(record, sort_keys=False, width=110)
    )


@app.command()
def fit(
    name: Annotated[str | None, typer.Argument(help="Profile; default: FRAMEKEEPER_PROFILE.")] = None,
    gpu_memory: Annotated[
        str | None, typer.Option(help="Such as 24GiB; default: the profile's card.")
    ] = None,
    directory: Directory = None,
) -> None:
    """The memory budget line by line, and whether it fits; exit 2 when it does not."""
    profile = _profile(name, directory)
    needed = budget(profile)
    if needed is None:
        typer.echo(f"{profile.name}: the memory model knows CUDA profiles of Wan2.2 A14B and TI2V-5B only.")
        return
    try:
        memory = parse_bytes(gpu_memory) if gpu_memory else card_memory(profile)
    except ValueError as error:
        typer.echo(f"--gpu-memory {gpu_memory}: {error}", err=True)
        raise typer.Exit(_WRONG) from None
    for line in needed.lines:
        typer.echo(f"{line.bytes / GIB:8.2f} GiB  {line.name}: {line.origin}")
    note = "" if needed.measured else "  (extrapolated: no measurement covers this combination)"
    typer.echo(
        f"{needed.bytes / GIB:8.2f} GiB  needed at {profile.admits.size}x{profile.admits.num_frames}{note}"
    )
    if memory is None:
        return
    typer.echo(f"{memory / GIB:8.2f} GiB  there: {'fits' if needed.bytes <= memory else 'does not fit'}")
    if needed.bytes > memory:
        frames = largest_frames(profile, memory)
        typer.echo(f"admits.num_frames: {frames} would fit" if frames else "no number of frames would fit")
        raise typer.Exit(_WRONG)


@app.command()
def schema() -> None:
    """JSON Schema of a profile, as in configs/profiles/schema.json."""
    typer.echo(json_schema.text(), nl=False)


@app.command("reference")
def write_reference(directory: Directory = None) -> None:
    """The generated documentation, as in docs/profiles.md."""
    try:
        typer.echo(reference.text(_settings_directory(directory)), nl=False)
    except ProfileError as error:
        raise _refuse(error) from None


def flatten(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


@app.command()
def diff(
    first: Annotated[str, typer.Argument(help="Profile.")],
    second: Annotated[str, typer.Argument(help="Profile.")],
    directory: Directory = None,
) -> None:
    """Keys in which two profiles differ, after `extends`."""
    one, other = (
        flatten(_profile(name, directory).model_dump(mode="json", exclude={"name", "extends"}))
        for name in (first, second)
    )
    for key in sorted(one.keys() | other.keys()):
        if one.get(key) != other.get(key):
            typer.echo(f"{key}: {one.get(key, '-')} -> {other.get(key, '-')}")
