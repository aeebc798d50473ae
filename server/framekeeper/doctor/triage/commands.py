"""`framekeeper triage`: exit 0 nothing to find, 1 a layer is at fault, 2 a wrong configuration."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from framekeeper.doctor.triage import report, script
from framekeeper.doctor.triage.outcome import Outcome
from framekeeper.doctor.triage.plan import Step, plan, small_job
from framekeeper.doctor.triage.route import follow
from framekeeper.doctor.triage.verdict import Verdict, judge
from framekeeper.engine import host
from framekeeper.engine.device_lock import DeviceHeld, DeviceLock
from framekeeper.launcher.checkpoint import CheckpointFailed, engine_python, is_wanted, make
from framekeeper.profiles.faults import ProfileError
from framekeeper.profiles.installed import installed_versions
from framekeeper.profiles.launch import Launch
from framekeeper.profiles.load import ARGUMENT, VARIABLE, load_profile
from framekeeper.settings import Settings, SettingsError, load

_WRONG = 2
_LATER = (
    "Next: for a bug report, --report FILE writes all of this, --script FILE a script without Framekeeper."
)


def triage(
    name: Annotated[str | None, typer.Argument(help="Profile; default: FRAMEKEEPER_PROFILE.")] = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of a table.")] = False,
    report_file: Annotated[
        Path | None, typer.Option("--report", help="Write a Markdown report, to attach to a bug.")
    ] = None,
    script_file: Annotated[
        Path | None, typer.Option("--script", help="Write a script that fails the same without Framekeeper.")
    ] = None,
    deadline: Annotated[
        float | None,
        typer.Option(min=1, help="Seconds for loading, and again for the job; default: the profile's."),
    ] = None,
    repeat: Annotated[
        int,
        typer.Option(min=1, max=100, help="Passes in a row that a step needs; for faults that come and go."),
    ] = 1,
    whole: Annotated[
        bool, typer.Option("--whole", help="The profile's own warm-up shape instead of a small one.")
    ] = False,
) -> None:
    """Find the layer at fault: one small job with less and less around it, until it passes."""
    settings = load()
    named_by = ARGUMENT if name else VARIABLE
    try:
        wanted = load_profile(name or settings.profile, settings.profiles, named_by=named_by)
        if settings.model:
            wanted = wanted.model_copy(update={"model": settings.model})
        profile = small_job(wanted, deadline=deadline, whole=whole)
        work = (settings.var / "triage").absolute()
        facts = host.gather(settings, profile.runtime)
        # Homes and sockets beside the supervisor's, caches the very same.
        steps = plan(profile, dataclasses.replace(facts, run_directory=work / "run"), work / "caches")
    except ProfileError as error:
        # Warnings beside them are of triage's own small job.
        for fault in (each for each in error.faults if each.severity == "refuse"):
            typer.echo(str(fault), err=True)
        raise typer.Exit(_WRONG) from None
    python = engine_python(settings, profile.runtime)
    console = Console(stderr=as_json)
    if not console.is_terminal:
        # Piped output is for other programs: lines must not be broken at 80 columns there.
        console = Console(stderr=as_json, width=1000)
    console.print(f"triage of [bold]{profile.name}[/bold]: {report.job(profile)}", highlight=False)
    launch = steps[0].launch
    assert launch is not None
    with _devices(settings, launch):
        outcomes = _run(steps, python, work, repeat, console)
    verdict = judge(outcomes)
    if as_json:
        typer.echo(json.dumps(report.record(profile, outcomes, verdict), indent=2))
    else:
        report.print_table(console, outcomes)
        # The terminal breaks long lines where they can be copied whole; rich would put in ends of lines.
        console.print(
            f"\n{verdict.sentence}\nTo do: {verdict.advice}.", highlight=False, markup=False, soft_wrap=True
        )
        if verdict.status and report_file is None:
            console.print(_LATER, highlight=False, markup=False, style="dim")
    if report_file is not None:
        installed = installed_versions(host.engine_environment(settings, profile.runtime))
        _write(report_file, report.markdown(profile, outcomes, verdict, installed), console)
    if script_file is not None:
        _write_script(script_file, outcomes, verdict, console)
    raise typer.Exit(verdict.status)


@contextlib.contextmanager
def _devices(settings: Settings, launch: Launch) -> Iterator[None]:
    """Hold the devices as a supervisor does. Exits with 2 while somebody else has them."""
    cards = launch.options["device"] != "cpu"
    directory = settings.device_locks if cards else settings.run_directory
    lock = DeviceLock(directory.absolute(), launch.devices, f"{settings.host_id}/triage")
    try:
        lock.acquire()
    except DeviceHeld as error:
        raise SettingsError(str(error)) from None
    except OSError as error:
        raise SettingsError(
            f"FRAMEKEEPER_{'DEVICE_LOCKS' if cards else 'VAR'}: {directory} cannot be used "
            f"({error.strerror}); set a directory that may be written to"
        ) from None
    with lock:
        yield


def _run(steps: list[Step], python: Path, work: Path, repeat: int, console: Console) -> list[Outcome]:
    shutil.rmtree(work, ignore_errors=True)
    try:
        work.mkdir(parents=True, mode=0o700)
        launch = steps[0].launch
        if launch is not None and launch.backend != "fault" and is_wanted(Path(launch.model)):
            make(python, Path(launch.model))
        with console.status("") as status:
            return asyncio.run(
                follow(
                    steps,
                    python,
                    work,
                    repeat=repeat,
                    on_start=lambda step: status.update(f"trying: {step.name}"),
                )
            )
    except (OSError, CheckpointFailed) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from None
    finally:
        # Logs stay; homes and caches of the steps are of no use to anybody.
        for directory in (work / "run", work / "caches"):
            shutil.rmtree(directory, ignore_errors=True)


def _write(path: Path, text: str, console: Console) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        typer.echo(f"{path}: cannot be written ({error.strerror})", err=True)
        raise typer.Exit(1) from None
    console.print(f"wrote {path}", highlight=False, markup=False)


def _write_script(path: Path, outcomes: list[Outcome], verdict: Verdict, console: Console) -> None:
    """Of the last failure that the weights check is not: it has the least around it."""
    failures = [each for each in outcomes if each.state == "failed" and each.step.how != "weights"]
    if not failures:
        console.print(f"no {path}: nothing fails", highlight=False, markup=False)
        return
    step = failures[-1].step
    assert step.launch is not None
    try:
        text = script.text(step.launch, verdict.sentence, empty_caches=step.name != "configured")
    except script.NoScript as error:
        console.print(f"no {path}: {error}", highlight=False, markup=False)
        return
    _write(path, text, console)
