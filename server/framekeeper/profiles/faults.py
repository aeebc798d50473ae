"""What is wrong with a profile: one fault a line, all of them at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One reason why a profile is refused (or, with severity `warn`, worth a second look).

    `where` is "file:line", or the profile's name where there is no file. `rule` is empty for faults of form.
    """

    where: str
    key: str
    value: str
    reason: str
    advice: str
    rule: str = ""
    evidence: tuple[str, ...] = ()
    severity: str = "refuse"

    def __str__(self) -> str:
        rule = f" [{self.rule}]" if self.rule else ""
        shown = f"{self.key}: {self.value}" if self.value else self.key
        evidence = f" See {' and '.join(self.evidence)}" if self.evidence else ""
        return f"{self.where}: {shown}{rule}: {self.reason}. Set: {self.advice}.{evidence}"


class ProfileError(Exception):
    """A profile cannot be used; the message has one line for each fault, and `faults` holds them."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(str(fault) for fault in faults))
