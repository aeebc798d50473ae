"""The figures of a soak: as a table, and as one line of JSON."""

from __future__ import annotations

import json
import math
import os
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from system import PROJECT


def percentile(values: Sequence[float], percent: float) -> float:
    """Nearest rank: a value that was really seen."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)]


@dataclass
class Report:
    """What a soak found. `problems` is empty when all held."""

    seed: int
    seconds: float
    sections: dict[str, dict[str, Any]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def count(self, section: str, counted: Mapping[str, int] | Iterable[str]) -> None:
        """Enter counts, the largest first."""
        counter = Counter(counted) if not isinstance(counted, Counter) else counted
        self.sections.setdefault(section, {}).update(counter.most_common())

    def tell(self, section: str, name: str, value: Any) -> None:
        """Enter one value."""
        self.sections.setdefault(section, {})[name] = value

    def spread(self, section: str, name: str, values: Sequence[float]) -> None:
        """Enter p50, p99 and the largest of some seconds."""
        if values:
            figures = {"n": len(values), "p50": percentile(values, 50), "p99": percentile(values, 99)}
            rounded = {key: round(value, 3) for key, value in (figures | {"max": max(values)}).items()}
            self.tell(section, name, rounded)

    def show(self) -> None:
        """Print the table, then what did not hold."""
        console = Console(highlight=False, width=None if Console().is_terminal else 120)
        title = f"soak of {self.seconds:.0f} s, seed {self.seed}"
        table = Table(title=title, title_justify="left", show_header=False)
        for section, values in self.sections.items():
            table.add_section()
            table.add_row(section, style="bold")
            for name, value in values.items():
                told = (
                    "  ".join(f"{k} {v:g}" for k, v in value.items())
                    if isinstance(value, dict)
                    else str(value)
                )
                table.add_row(f"  {name}", told)
        console.print(table)
        for problem in self.problems:
            console.print(f"VIOLATION: {problem}", markup=False)
        console.print(f"{len(self.problems)} violations")

    def append(self, path: Path) -> None:
        """Add one line of JSON to a file of such lines."""
        commit = subprocess.run(
            ["git", "-C", PROJECT, "rev-parse", "--short", "HEAD"],
            capture_output=True,
            text=True,
            check=False,
        ).stdout.strip()
        line = {
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "commit": commit,
            "cores": len(os.sched_getaffinity(0)),
            "seed": self.seed,
            "seconds": round(self.seconds, 1),
            "violations": self.problems,
            **self.sections,
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
