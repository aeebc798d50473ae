"""Tables that code writes into a document, between two marks; a test fails when one is stale."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Marks:
    """The lines before and after a table of `what`, which `module` writes into `file`."""

    what: str
    module: str
    file: str

    @property
    def begin(self) -> str:
        """The line before."""
        return f"<!-- {self.what}: written by python -m {self.module} -->"

    @property
    def end(self) -> str:
        """The line after."""
        return f"<!-- end of {self.what} -->"

    def renewed(self, text: str, table: str) -> str:
        """`text` with `table` between the marks. Raises ValueError when a mark is missing."""
        before, begin, rest = text.partition(self.begin)
        _, end, after = rest.partition(self.end)
        if not begin or not end:
            raise ValueError(f"the marks {self.begin!r} and {self.end!r} are missing")
        return f"{before}{self.begin}\n{table}\n{self.end}{after}"

    def main(self, table: str, arguments: Sequence[str]) -> int:
        """Renew the table in the file that is named; returns the exit status."""
        if len(arguments) != 1:
            sys.stderr.write(f"usage: python -m {self.module} {self.file}\n")
            return 2
        path = Path(arguments[0])
        path.write_text(self.renewed(path.read_text(encoding="utf-8"), table), encoding="utf-8")
        return 0
