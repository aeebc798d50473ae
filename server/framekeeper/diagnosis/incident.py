"""The record of one unplanned end of an engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from typing import Any

from framekeeper.diagnosis.classify import Diagnosis
from framekeeper.diagnosis.ladder import Decision, DecisionAction, Fix, Past
from framekeeper.engine.exit import Exit


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes at the last report before the end; None where nobody could tell."""

    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    resident_bytes: int | None = None
    host_available_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class Incident:
    """What ended, where, why, and what was decided. `served`: the engine had got ready before."""

    id: str
    time: datetime
    engine: str
    profile: str
    rung: int
    rung_name: str
    phase: str | None
    job: str | None
    attempt: int | None
    served: bool
    client_error: bool
    signature: str
    known: bool
    cause: str
    line: str | None
    excerpt: tuple[str, ...]
    notes: tuple[str, ...]
    exit_code: int | None
    exit_signal: int | None
    exit_reason: str | None
    memory: Memory
    stacks: str | None
    action: DecisionAction
    next_rung: int
    fix: Fix | None
    reason: str

    @classmethod
    def of(
        cls,
        diagnosis: Diagnosis,
        decision: Decision,
        exit: Exit | None,
        *,
        id: str,
        time: datetime,
        engine: str,
        profile: str,
        rung: int,
        rung_name: str,
        served: bool,
        phase: str | None = None,
        job: str | None = None,
        attempt: int | None = None,
        memory: Memory | None = None,
        stacks: str | None = None,
    ) -> Incident:
        """The record of a diagnosis and the decision that followed. `rung` is the one that failed."""
        return cls(
            id=id,
            time=time,
            engine=engine,
            profile=profile,
            rung=rung,
            rung_name=rung_name,
            phase=phase,
            job=job,
            attempt=attempt,
            served=served,
            client_error=diagnosis.client_error,
            signature=diagnosis.signature,
            known=diagnosis.known,
            cause=diagnosis.cause,
            line=diagnosis.line,
            excerpt=diagnosis.excerpt,
            notes=diagnosis.notes,
            exit_code=exit.code if exit else None,
            exit_signal=exit.signal if exit else None,
            exit_reason=exit.reason if exit else None,
            memory=memory or Memory(),
            stacks=stacks,
            action=decision.action,
            next_rung=decision.rung,
            fix=decision.fix,
            reason=decision.reason,
        )

    def as_past(self) -> Past:
        """What the ladder wants to know of it."""
        return Past(
            time=self.time.timestamp(),
            signature=self.signature,
            rung=self.rung,
            after=self.next_rung,
            action=self.action,
            served=self.served,
            client_error=self.client_error,
        )

    def to_row(self) -> dict[str, Any]:
        """Plain values: texts, numbers, a datetime, lists, and a mapping for the memory."""
        return asdict(self) | {"excerpt": list(self.excerpt), "notes": list(self.notes)}

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Incident:
        """The record of a row that `to_row` gave. Keys it does not know are left out."""
        known = {field.name: row[field.name] for field in fields(cls) if field.name in row}
        known["excerpt"] = tuple(known["excerpt"])
        known["notes"] = tuple(known["notes"])
        known["memory"] = Memory(**known["memory"])
        return cls(**known)
