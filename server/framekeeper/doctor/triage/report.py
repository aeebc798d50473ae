"""What triage found: a table for a terminal, plain data for programs, Markdown to attach to a bug."""

from __future__ import annotations

import json
import os
import platform
import textwrap
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from framekeeper import __version__
from framekeeper.doctor.redaction import Redactor
from framekeeper.doctor.triage.outcome import Outcome
from framekeeper.doctor.triage.plan import differences
from framekeeper.doctor.triage.verdict import Verdict
from framekeeper.profiles.commands import flatten, launch_record
from framekeeper.profiles.launch import Launch
from framekeeper.profiles.schema import Profile

#: Columns below which a table would break every path.
NARROW = 120
#: Lines of a step's log in the report.
TAIL = 60
_STYLES = {"passed": "green", "failed": "red", "skipped": "dim", "not tried": "dim"}


def print_table(console: Console, outcomes: Sequence[Outcome]) -> None:
    """One row a step; on a narrow terminal what was seen stands below, so that paths stay whole."""
    if console.width < NARROW:
        for outcome in outcomes:
            console.print(_line(outcome), Padding(_seen(outcome), (0, 0, 0, 4)), highlight=False)
        return
    table = Table(box=None, pad_edge=False)
    for column in ("step", "result"):
        table.add_column(column, no_wrap=True)
    table.add_column("seconds", justify="right", no_wrap=True)
    table.add_column("what changed, and what was seen", overflow="fold")
    for outcome in outcomes:
        table.add_row(outcome.step.name, _result(outcome), _seconds(outcome), _seen(outcome))
    console.print(table)


def _line(outcome: Outcome) -> Text:
    seconds = _seconds(outcome)
    return Text.assemble(outcome.step.name, "  ", _result(outcome), f"  {seconds} s" if seconds else "")


def _result(outcome: Outcome) -> Text:
    return Text(outcome.state, style=_STYLES[outcome.state])


def _seconds(outcome: Outcome) -> str:
    return f"{outcome.seconds:.1f}" if outcome.state in ("passed", "failed") else ""


def _seen(outcome: Outcome) -> Text:
    step = outcome.step
    if step.skipped:
        return Text(step.skipped, style="dim")
    how = {"configured": "as the profile says", "weights": "every file and value read"}
    text = Text("; ".join(step.changed) or how.get(step.name, ""))
    if outcome.signature:
        text.append(f"\n{outcome.signature}", style="red")
        text.append(f": {outcome.cause}")
    return text


def record(profile: Profile, outcomes: Sequence[Outcome], verdict: Verdict) -> dict[str, Any]:
    """As plain data, for JSON."""
    return {
        "profile": profile.name,
        "runtime": profile.runtime,
        "backend": profile.backend,
        "job": job(profile),
        "layer": verdict.layer,
        "sentence": verdict.sentence,
        "advice": verdict.advice,
        "steps": [outcome.record() for outcome in outcomes],
    }


def job(profile: Profile) -> str:
    """Such as "64x64, 9 frames, 4 steps, 2 experts"."""
    width, height = profile.warm_up_size
    experts = f"{profile.experts} expert{'s' if profile.experts > 1 else ''}"
    steps = profile.warm_up.num_inference_steps
    return f"{width}x{height}, {profile.warm_up_frames} frames, {steps} steps, {experts}"


def markdown(
    profile: Profile,
    outcomes: Sequence[Outcome],
    verdict: Verdict,
    installed: Mapping[str, str],
) -> str:
    """The report: versions, launch, what each step changed, tails of logs; without keys and prompts."""
    redactor = Redactor.of(os.environ)
    return redactor.text("\n".join(_markdown(profile, outcomes, verdict, installed))) + "\n"


def _markdown(
    profile: Profile, outcomes: Sequence[Outcome], verdict: Verdict, installed: Mapping[str, str]
) -> Iterator[str]:
    yield f"# Triage of {profile.name}\n"
    yield f"{verdict.sentence} To do: {verdict.advice}.\n"
    yield f"Made {datetime.now(UTC):%Y-%m-%d %H:%M} UTC by Framekeeper {__version__}; job: {job(profile)}.\n"
    yield "| step | what changed | result | seconds | signature |"
    yield "|---|---|---|---:|---|"
    for outcome in outcomes:
        changed = outcome.step.skipped or "; ".join(outcome.step.changed) or "-"
        seconds = f"{outcome.seconds:.1f}" if outcome.seconds else ""
        yield f"| {outcome.step.name} | {changed} | {outcome.state} | {seconds} | {outcome.signature or ''} |"
    yield "\n## Versions\n"
    yield f"- Linux {platform.release()}, {platform.machine()}, {' '.join(platform.libc_ver())}"
    yield f"- Python {platform.python_version()} (Framekeeper's)"
    yield from (f"- {name} {version}" for name, version in installed.items())
    configured = outcomes[0].step.launch
    assert configured is not None
    yield "\n## The launch as configured\n"
    yield _block(json.dumps(launch_record(configured), indent=1), "json")
    for outcome in outcomes:
        if outcome.state in ("passed", "failed"):
            yield from _step(outcome, configured)


def _step(outcome: Outcome, configured: Launch) -> Iterator[str]:
    yield f"\n## Step {outcome.step.name}: {outcome.state}\n"
    if outcome.signature:
        yield f"{outcome.signature} while {outcome.phase or 'reading'}: {outcome.cause}\n"
    launch = outcome.step.launch
    if launch is not None and launch is not configured:
        changes = [
            *differences(configured.environment, launch.environment),
            *differences(flatten(configured.options), flatten(launch.options)),
        ]
        yield "Differences from the configured launch:\n"
        yield _block("\n".join(changes) or "none")
    if outcome.log is not None:
        yield f"\nThe last {TAIL} lines of its log:\n"
        yield _block(tail(outcome.log))


def tail(log: Path, lines: int = TAIL) -> str:
    """The last lines of a file, or why there are none."""
    try:
        with log.open(encoding="utf-8", errors="replace") as file:
            last = deque((line.rstrip("\n") for line in file), maxlen=lines)
    except OSError as error:
        return f"({error.strerror})"
    return "\n".join(last)


def _block(text: str, language: str = "") -> str:
    # Indented, a log that holds a fence of its own cannot end the block.
    return f"```{language}\n{text}\n```" if "```" not in text else textwrap.indent(text, "    ")
