"""Findings for people: a table, the gravest first, with what to do under each."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from framekeeper.doctor.finding import Finding, count, gravest_first

_NARROW = 100
_STYLES = {"fatal": "bold red", "warn": "yellow", "note": "cyan", "ok": "green"}


def print_findings(findings: Sequence[Finding], *, everything: bool = True, after: str = "") -> None:
    """Print the table, a line of totals and `after`; without `everything` what is ok is only counted."""
    console = Console()
    if not console.is_terminal:
        # Piped output is for other programs: lines must not be broken at 80 columns there.
        console = Console(width=1000)
    narrow = console.width < _NARROW
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    if not narrow:
        table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in gravest_first(findings):
        if finding.severity == "ok" and not everything:
            continue
        severity, check = Text(finding.severity, style=_STYLES[finding.severity]), Text(finding.check)
        told = _told(finding)
        if not narrow:
            table.add_row(severity, check, told)
        elif finding.why:
            table.add_row(severity, Group(Text(finding.check, style="bold"), told))
        else:
            table.add_row(severity, Text(f"{finding.check}: {finding.seen}"))
    console.print(table)
    console.print(total(findings), highlight=False)
    if after:
        console.print(after, highlight=False, markup=False, style="dim")


def _told(finding: Finding) -> RenderableType:
    """What was seen, and under it reason, advice and evidence, each with its label before it."""
    if not finding.why:
        return Text(finding.seen)
    rest = Table.grid(padding=(0, 1, 0, 0))
    rest.add_column(no_wrap=True, style="dim")
    rest.add_column(overflow="fold")
    for label, line in (("why:", finding.why), ("do:", finding.advice), ("see:", finding.evidence)):
        if line:
            rest.add_row(label, Text(line))
    return Group(Text(finding.seen), rest)


def total(findings: Sequence[Finding]) -> str:
    """Such as "2 fatal, 1 warning, 14 fine"."""
    fatal, warnings = count(findings, "fatal"), count(findings, "warn")
    parts = [f"{fatal} fatal"] if fatal else []
    if warnings:
        parts.append(f"{warnings} warning{'s' if warnings > 1 else ''}")
    if notes := count(findings, "note"):
        parts.append(f"{notes} note{'s' if notes > 1 else ''}")
    return ", ".join([*parts, f"{count(findings, 'ok')} fine"])
