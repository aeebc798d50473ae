"""Figures: what was measured, with units, as one table and as one JSON line."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

OURS = "framekeeper"
PEER = "upstream"


def percentile(values: Sequence[float], percent: float) -> float:
    """Nearest rank: a value that was really seen."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)]


@dataclass(frozen=True)
class Figure:
    """One line of the table: all values of one kind, in `unit`."""

    section: str
    name: str
    unit: str
    values: tuple[float, ...]

    def facts(self) -> dict[str, Any]:
        """For JSON: one value alone, several as percentiles."""
        if len(self.values) == 1:
            return {"unit": self.unit, "value": _short(self.values[0])}
        return {
            "unit": self.unit,
            "n": len(self.values),
            "p50": _short(percentile(self.values, 50)),
            "p99": _short(percentile(self.values, 99)),
            "max": _short(max(self.values)),
            "mean": _short(statistics.fmean(self.values)),
        }


@dataclass
class Report:
    """All figures of one run. `told` are observations in words, `left_out` what could not be measured."""

    figures: dict[str, list[Figure]] = field(default_factory=lambda: {OURS: [], PEER: []})
    told: dict[str, Any] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    def add(
        self, section: str, name: str, unit: str, values: float | Iterable[float], *, side: str = OURS
    ) -> None:
        """Enter a figure. `side` says whose it is; equal sections and names stand beside each other."""
        several = (float(values),) if isinstance(values, int | float) else tuple(values)
        if several:
            self.figures[side].append(Figure(section, name, unit, several))

    def line(self, head: dict[str, Any]) -> str:
        """One line of JSON: `head`, then the figures by side, section and name."""
        figures: dict[str, Any] = {}
        for side, entries in self.figures.items():
            for each in entries:
                figures.setdefault(side, {}).setdefault(each.section, {})[each.name] = each.facts()
        return json.dumps(
            {**head, "figures": figures, "told": self.told, "left_out": self.left_out}, ensure_ascii=False
        )

    def append(self, path: Path, head: dict[str, Any]) -> None:
        """Add the line to a file of such lines."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(self.line(head) + "\n")

    def table(self) -> Table:
        """Ours and upstream's side by side; where there was one value, it stands under p50."""
        table = Table(title="Framekeeper beside vllm-omni's own server", title_justify="left")
        table.add_column("figure", overflow="fold")
        for heading in ("unit", "p50", "p99", "n", "upstream p50", "p99", "n"):
            table.add_column(heading, justify="left" if heading == "unit" else "right", no_wrap=True)
        sides = [{(each.section, each.name): each for each in self.figures[side]} for side in (OURS, PEER)]
        keys = list(sides[0] | sides[1])
        for section in dict.fromkeys(section for section, _ in keys):
            table.add_section()
            table.add_row(section, style="bold")
            for key in (key for key in keys if key[0] == section):
                ours, peer = (side.get(key) for side in sides)
                unit = (ours or peer or Figure(*key, "", (0,))).unit
                table.add_row(f"  {key[1]}", unit, *_cells(ours), *_cells(peer))
        return table

    def show(self) -> None:
        """Print the table, then the words."""
        console = Console(highlight=False, width=None if Console().is_terminal else 130)
        console.print(self.table())
        for name, words in self.told.items():
            console.print(f"{name}: {words}", markup=False)
        for name, reason in self.left_out.items():
            console.print(f"left out: {name}: {reason}", markup=False)


def _cells(figure: Figure | None) -> tuple[str, str, str]:
    if figure is None:
        return "", "", ""
    facts = figure.facts()
    if "value" in facts:
        return f"{facts['value']:g}", "", "1"
    return f"{facts['p50']:g}", f"{facts['p99']:g}", str(facts["n"])


def _short(value: float) -> float:
    """Four significant digits: more would be noise."""
    return float(f"{value:.4g}")
