"""Ctrl-C: one asks for a tidy end, the next one leaves at once."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupts:
    """SIGINT raises KeyboardInterrupt, but while `held` the first one waits."""

    def __init__(self) -> None:
        self._held = False
        self._noted = False
        signal.signal(signal.SIGINT, self._on_signal)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        if self._held and not self._noted:
            self._noted = True
            return
        raise KeyboardInterrupt

    @contextmanager
    def held(self) -> Iterator[None]:
        """Finish this block first: a job that was just submitted can be cancelled only by its id."""
        self._held = True
        try:
            yield
        finally:
            self._held = False

    def check(self) -> None:
        """Raise the interrupt that waited."""
        if self._noted:
            self._noted = False
            raise KeyboardInterrupt
