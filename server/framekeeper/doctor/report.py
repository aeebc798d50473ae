"""Findings for people: a table, the gravest first, with what to do under each."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from framekeeper.doctor.finding import Finding, count, gravest_first

_STYLES = {"fatal": "bold red", "warn": "yellow", "note": "cyan", "ok": "green"}


def print_findings(findings: Sequence[Finding], *, everything: bool = True) -> None:
    """Print the table and a line of totals; without `everything` what is ok is only counted."""
    console = Console()
    if not console.is_terminal:
        # Piped output is for other programs: lines must not be broken at 80 columns there.
        console = Console(width=1000)
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in gravest_first(findings):
        if finding.severity == "ok" and not everything:
            continue
        text = Text(finding.seen)
        for label, line in (("why: ", finding.why), ("do: ", finding.advice), ("see: ", finding.evidence)):
            if line:
                text.append(f"\n  {label}", style="dim").append(line)
        table.add_row(Text(finding.severity, style=_STYLES[finding.severity]), Text(finding.check), text)
    console.print(table)
    console.print(total(findings), highlight=False)


def total(findings: Sequence[Finding]) -> str:
    """Such as "2 fatal, 1 warning, 14 fine"."""
    fatal, warnings = count(findings, "fatal"), count(findings, "warn")
    parts = [f"{fatal} fatal"] if fatal else []
    if warnings:
        parts.append(f"{warnings} warning{'s' if warnings > 1 else ''}")
    if notes := count(findings, "note"):
        parts.append(f"{notes} note{'s' if notes > 1 else ''}")
    return ", ".join([*parts, f"{count(findings, 'ok')} fine"])
