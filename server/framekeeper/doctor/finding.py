"""One thing that was looked at: what was seen, why it matters, what to do, where that is known from."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, Literal

Severity = Literal["ok", "note", "warn", "fatal"]
ORDER: tuple[Severity, ...] = ("fatal", "warn", "note", "ok")
"""The gravest first: `fatal` will not run, `warn` may break, `note` is worth knowing."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """`check` is a stable id such as "driver"; `evidence` is a public URL, empty where there is none.

    What is `ok` needs no reason and no advice; everything else has both.
    """

    check: str
    severity: Severity
    seen: str
    why: str = ""
    advice: str = ""
    evidence: str = ""

    def __str__(self) -> str:
        evidence = f" See {self.evidence}" if self.evidence else ""
        rest = f" {self.why}. Do: {self.advice}.{evidence}" if self.why else ""
        return f"{self.severity} [{self.check}] {self.seen}.{rest}"

    def record(self) -> dict[str, Any]:
        """As plain data, for JSON."""
        return dataclasses.asdict(self)


def gravest_first(findings: Iterable[Finding]) -> list[Finding]:
    """Sorted by severity; those of one severity stay in their order."""
    return sorted(findings, key=lambda finding: ORDER.index(finding.severity))


def count(findings: Iterable[Finding], severity: Severity) -> int:
    """How many have this severity."""
    return sum(finding.severity == severity for finding in findings)


def few(findings: Sequence[Finding], most: int = 12) -> list[Finding]:
    """At most so many of one check and severity, and one that counts the rest."""
    kept: list[Finding] = []
    left: dict[tuple[str, Severity], list[Finding]] = {}
    for finding in findings:
        same = left.setdefault((finding.check, finding.severity), [])
        same.append(finding)
        if len(same) <= most:
            kept.append(finding)
    for same in left.values():
        if len(same) > most:
            seen = f"{len(same) - most} more like these are not shown"
            kept.append(dataclasses.replace(same[-1], seen=seen))
    return kept
