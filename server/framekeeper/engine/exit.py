"""How a process ended."""

from __future__ import annotations

import signal
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Exit:
    """An exit code, or the signal that ended the process. `reason` is set when we ended it ourselves."""

    code: int | None
    signal: int | None
    reason: str | None = None

    @classmethod
    def of(cls, returncode: int, reason: str | None = None) -> Exit:
        """From a `returncode` as Python's subprocess gives it."""
        if returncode < 0:
            return cls(code=None, signal=-returncode, reason=reason)
        return cls(code=returncode, signal=None, reason=reason)

    def __str__(self) -> str:
        if self.reason:
            return self.reason
        if self.signal is None:
            return f"the engine process exited with code {self.code}"
        try:
            name = signal.Signals(self.signal).name
        except ValueError:
            name = str(self.signal)
        return f"the engine process was ended by {name}"
