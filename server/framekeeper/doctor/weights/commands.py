"""`framekeeper weights check`: exit 0 fine, 1 faults found, 2 wrong usage."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

from framekeeper.checkpoint.layout import listed
from framekeeper.doctor.finding import Finding, count, gravest_first
from framekeeper.doctor.report import print_findings
from framekeeper.doctor.weights.check import (
    Checkpoint,
    bytes_to_read,
    check_headers,
    check_values,
    told_bytes,
)

app = typer.Typer(help="Weights of a checkpoint.", no_args_is_help=True, pretty_exceptions_enable=False)
_WRONG = 2


@app.callback()
def weights() -> None:
    """Weights of a checkpoint."""


@app.command()
def check(
    directory: Annotated[Path, typer.Argument(help="Folder of a diffusers checkpoint.")],
    deep: Annotated[bool, typer.Option("--deep", help="Also read every weight, with little memory.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of a table.")] = False,
) -> None:
    """Check files, headers, shapes, both experts and quantisation of a checkpoint; reads headers only."""
    if fault := listed(directory)[1]:
        typer.echo(f"{fault}. Give the folder that holds model_index.json.", err=True)
        raise typer.Exit(_WRONG)
    begin = time.perf_counter()
    checkpoint = check_headers(directory)
    found = list(checkpoint.findings)
    if deep:
        found += _with_progress(checkpoint)
    seconds = time.perf_counter() - begin
    faults = count(found, "fatal")
    if as_json:
        record = {
            "directory": str(directory),
            "deep": deep,
            "tensors": checkpoint.tensors,
            "bytes": checkpoint.bytes,
            "seconds": round(seconds, 3),
            "findings": [finding.record() for finding in gravest_first(found)],
        }
        typer.echo(json.dumps(record, indent=2))
        raise typer.Exit(1 if faults else 0)
    read = "every weight read" if deep else "headers read"
    summary = Finding(
        check="weights",
        severity="ok",
        seen=f"{len(checkpoint.components)} components, {checkpoint.tensors:,} tensors, "
        f"{told_bytes(checkpoint.bytes)}: {read} in {seconds:.2f} s",
    )
    after = "" if faults or deep else "Next: --deep reads every value, too."
    print_findings([*found, summary], after=after)
    raise typer.Exit(1 if faults else 0)


def _with_progress(checkpoint: Checkpoint) -> list[Finding]:
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    # On standard error, so that a table or JSON can be piped.
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("reading", total=bytes_to_read(checkpoint))
        return check_values(checkpoint, lambda amount: progress.advance(task, amount))
