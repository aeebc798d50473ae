"""What a person sees while it starts: a live table in a terminal, one line a stage elsewhere."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text


@dataclass
class _Stage:
    title: str
    detail: str = ""
    began: float = field(default_factory=time.monotonic)
    ended: float | None = None
    good: bool = True

    @property
    def seconds(self) -> float:
        return (self.ended or time.monotonic()) - self.began


class Display:
    """Stages with their seconds, and lines between them."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False)
        self._stages: list[_Stage] = []
        self._spinner = Spinner("dots")
        self._live: Live | None = None

    def __enter__(self) -> Display:
        if self.console.is_terminal:
            self._live = Live(
                console=self.console, get_renderable=self._table, refresh_per_second=8, transient=False
            )
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.settle()

    def settle(self) -> None:
        """Leave the table as it is; lines that follow come below it."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def begin(self, title: str) -> None:
        """A stage starts."""
        self._stages.append(_Stage(title))

    def detail(self, text: str) -> None:
        """What the current stage is doing."""
        stage = self._stages[-1]
        if text != stage.detail:
            stage.detail = text
            if self._live is None:
                self.say(f"{stage.title}: {text} ({stage.seconds:.0f} s)")

    def end(self, detail: str, *, good: bool = True) -> None:
        """The current stage is over."""
        stage = self._stages[-1]
        stage.detail, stage.ended, stage.good = detail, time.monotonic(), good
        if self._live is None:
            self.say(f"{stage.title}: {detail} ({stage.seconds:.1f} s)")

    def say(self, text: str) -> None:
        """Lines of their own, as they are: nothing is wrapped, coloured or read as markup."""
        self.console.print(Text(text), soft_wrap=True)
        self.console.file.flush()

    def _table(self) -> Table:
        table = Table.grid(padding=(0, 2))
        for stage in self._stages:
            done = Text("✓" if stage.good else "✗", style="green" if stage.good else "red")
            mark = self._spinner if stage.ended is None else done
            table.add_row(
                mark, Text(stage.title), Text(f"{stage.seconds:.1f} s", style="dim"), Text(stage.detail)
            )
        return table


class DisplayHandler(logging.Handler):
    """Warnings of our own modules, such as a permission that was widened, as lines of the display."""

    def __init__(self, display: Display) -> None:
        super().__init__(logging.WARNING)
        self.display = display

    def emit(self, record: logging.LogRecord) -> None:
        """Show one record."""
        self.display.say(record.getMessage())
