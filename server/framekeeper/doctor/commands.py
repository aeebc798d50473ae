"""`framekeeper doctor`: exit 0 fine, 1 something fatal (--strict: or a warning), 2 wrong configuration."""

# ruff: noqa: PLC0415  The command line loads this file for every command; what is heavy waits for this one.

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import ValidationError

from framekeeper.doctor.caches import clear_caches
from framekeeper.doctor.finding import count
from framekeeper.doctor.readings import Readings
from framekeeper.profiles.faults import ProfileError
from framekeeper.settings import Settings, load

if TYPE_CHECKING:
    from framekeeper.doctor.examine import Examination

_WRONG = 2
_LARGEST_READINGS = 64 * 1024 * 1024


def doctor(
    name: Annotated[
        str | None, typer.Argument(metavar="PROFILE", help="Default: FRAMEKEEPER_PROFILE.")
    ] = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of a table.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit 1 for warnings, too.")] = False,
    fast: Annotated[
        bool, typer.Option("--fast", help="A second or two: try nothing with the engine's Python.")
    ] = False,
    brief: Annotated[bool, typer.Option("--brief", help="Only count what is fine.")] = False,
    recorded: Annotated[
        Path | None,
        typer.Option("--readings", help="Judge a recorded host; the output of --json holds one."),
    ] = None,
    clear: Annotated[
        bool, typer.Option("--clear-caches", help="Remove the compile caches, and do nothing else.")
    ] = False,
    bundle: Annotated[
        Path | None,
        typer.Option("--bundle", help="Write a zip for a bug report, without prompts, keys and passwords."),
    ] = None,
) -> None:
    """Say what is wrong with this host, its environment, the runtime and the weights, before it crashes."""
    from framekeeper.doctor.examine import examine_host
    from framekeeper.doctor.report import print_findings

    settings = load()
    if clear:
        _clear(settings)
        return
    if bundle is not None:
        _bundle(bundle, settings, name or settings.profile, fast)
        return
    try:
        examination = examine_host(
            settings,
            name or settings.profile,
            fast=fast,
            recorded=_recorded(recorded) if recorded else None,
        )
    except ProfileError as error:
        for fault in error.faults:
            typer.echo(str(fault), err=True)
        raise typer.Exit(_WRONG) from None
    if as_json:
        typer.echo(json.dumps(examination.record(), indent=2))
    else:
        print_findings(examination.findings, everything=not brief, after=_next(examination))
    failed = count(examination.findings, "fatal")
    failed += count(examination.findings, "warn") if strict else 0
    raise typer.Exit(1 if failed else 0)


def _next(examination: Examination) -> str:
    """What to do once all of it is read."""
    if examination.fatal:
        return "Next: mend what is fatal from the top on; no engine starts before. Then run this again."
    if examination.fast:
        return "Next: without --fast the engine's own packages are tried, too."
    return "Next: if videos fail all the same, `framekeeper triage` finds the layer."


def doctor_record(settings: Settings, profile_name: str, fast: bool = True) -> dict[str, Any]:
    """What `doctor --json` prints, as data. Raises ProfileError where there is no such profile."""
    from framekeeper.doctor.examine import examine_host

    return examine_host(settings, profile_name, fast=fast).record()


def _bundle(path: Path, settings: Settings, profile_name: str, fast: bool) -> None:
    from framekeeper.doctor.bundle import write

    try:
        parts = write(path, settings, profile_name, fast=fast)
    except OSError as error:
        typer.echo(f"--bundle {path}: cannot be written ({error.strerror})", err=True)
        raise typer.Exit(1) from None
    typer.echo(f"wrote {path}: {', '.join(parts)}")


def _clear(settings: Settings) -> None:
    try:
        removed = clear_caches(settings.cache_directory)
    except OSError as error:
        typer.echo(f"{error.filename} cannot be removed: {error.strerror}", err=True)
        raise typer.Exit(1) from None
    for path in removed:
        typer.echo(f"removed {path}")
    if not removed:
        typer.echo(f"no compile caches in {settings.cache_directory}")


def _recorded(path: Path) -> Readings:
    try:
        if not path.is_file() or path.stat().st_size > _LARGEST_READINGS:
            raise ValueError("is no file of readings")
        content = json.loads(path.read_text(encoding="utf-8"))
        readings = content.get("readings", content) if isinstance(content, dict) else content
        return Readings.model_validate(readings)
    except (OSError, ValueError, RecursionError, ValidationError) as error:
        typer.echo(f"--readings {path}: {error}", err=True)
        raise typer.Exit(_WRONG) from None
