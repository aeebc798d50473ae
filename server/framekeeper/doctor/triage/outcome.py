"""How one step ended, with the cause by the same signatures as an engine's incidents."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from framekeeper.diagnosis.classify import Diagnosis, Evidence, classify
from framekeeper.doctor.triage.plan import Step
from framekeeper.doctor.triage.process import Ended
from framekeeper.engine.protocol import PhaseName

#: Phases before the job.
LOADING = ("importing", "loading", "dummy_run")
State = Literal["passed", "failed", "skipped", "not tried"]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """`signature`, `cause` and `line` (the telling line of the log) say why a step failed."""

    step: Step
    state: State
    seconds: float = 0.0
    phase: str | None = None
    signature: str | None = None
    cause: str | None = None
    line: str | None = None
    log: Path | None = None

    def record(self) -> dict[str, Any]:
        """As plain data, for JSON."""
        return {
            "step": self.step.name,
            "layer": self.step.layer,
            "changed": list(self.step.changed),
            "result": self.state,
            "skipped": self.step.skipped,
            "seconds": round(self.seconds, 2),
            "phase": self.phase,
            "signature": self.signature,
            "cause": self.cause,
            "line": self.line,
            "log": str(self.log) if self.log else None,
        }


def failed(step: Step, seconds: float, phase: str | None, diagnosis: Diagnosis, log: Path) -> Outcome:
    """A failed step from its diagnosis."""
    return Outcome(
        step=step,
        state="failed",
        seconds=seconds,
        phase=phase,
        signature=diagnosis.signature,
        cause=diagnosis.cause,
        line=diagnosis.line,
        log=log,
    )


def of_direct(step: Step, ended: Ended, log: Path, result_file: Path) -> Outcome:
    """The outcome of `direct`, from what it wrote and how it ended."""
    try:
        result = json.loads(result_file.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # it ended before its first word
        result = {}
    phase = result.get("phase")
    if result.get("passed") and ended.exit.code == 0:
        return Outcome(step=step, state="passed", seconds=ended.seconds, phase=phase, log=log)
    known: Any = phase if phase in get_args(PhaseName) else None
    evidence = Evidence(
        phase=known,
        deadline=("load" if phase in LOADING else "warm_up") if ended.late else None,
        failure=result.get("message"),
        failure_kind=result.get("kind"),
    )
    with log.open(encoding="utf-8", errors="replace") as lines:
        diagnosis = classify(lines, ended.exit, evidence)
    return failed(step, ended.seconds, phase, diagnosis, log)
