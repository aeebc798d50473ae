"""From an engine's log, its exit and what the host says to one diagnosis.

The order of belief: what the kernel says about the hardware, the first cause in the log, words that wrap a
failure, a signal or a missed deadline, a wrong request, and last what only follows from something else
(`EngineDeadError` and its like). What none of it explains is `unknown`, and treated the safe way: a new
process, and the job is tried again.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from framekeeper.diagnosis.scan import Finding, Found, Scanner, better
from framekeeper.diagnosis.signature import Action, Clue, RungKind, Signature, by_clue
from framekeeper.engine.exit import Exit
from framekeeper.engine.protocol import PhaseName

Deadline = Literal["load", "warm_up", "step", "decode", "job"]


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What is known beside the log. All of it may be missing.

    `phase`: what the engine was doing. `deadline`: the one it missed, when we ended it for that. `failure`,
    `failure_kind` and `trace`: what its last `Failed` message said. `healthy`: the worker proved, after the
    failure, that it can go on. `host_oom_kills`: how many processes the kernel killed for memory in our
    cgroup while this engine ran, None when nobody counted. `kernel_log`: the kernel's lines of that time.
    """

    phase: PhaseName | None = None
    deadline: Deadline | None = None
    failure: str | None = None
    failure_kind: Literal["engine", "frames", "storage"] | None = None
    trace: str | None = None
    healthy: bool = False
    host_oom_kills: int | None = None
    kernel_log: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """Why an engine failed. `cause` is one sentence for the owner of the job and for the operator.

    `ended`: the process is gone. `usable`: it is alive, not poisoned, and has proved that it can go on.
    `line` is the first telling line of the log, `excerpt` the lines around it, `notes` are ids of signatures
    that were seen and mean nothing by themselves.
    """

    signature: str
    known: bool
    cause: str
    action: Action
    rungs: tuple[RungKind, ...]
    patience: int
    poisons: bool
    retry: bool
    ended: bool
    usable: bool
    client_error: bool = False
    line: str | None = None
    excerpt: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()


def classify(log: Iterable[str], exit: Exit | None, evidence: Evidence | None = None) -> Diagnosis:
    """Name the cause. `log` holds the lines since the newest start of the engine, and nothing older.

    `exit` is None while the process lives. Raises nothing that depends on the log's content.
    """
    evidence = evidence or Evidence()
    found = Scanner(phase=evidence.phase).read(log)
    kernel = Scanner(phase=evidence.phase, kernel=True).read(evidence.kernel_log)
    told = better(kernel, found)
    if not told and (evidence.trace or evidence.failure):
        # The log may be lost (a full disk); the message of the worker is not.
        message = [*(evidence.trace or "").splitlines(), evidence.failure or ""]
        found = Scanner(phase=evidence.phase).read(message)
        told = better(kernel, found)
    clue = _clue(exit, evidence)
    signature, finding = _choose(told, clue, exit)
    signature = _with_counters(signature, evidence)
    return _diagnosis(signature, finding or _first_error(found), found, exit, evidence)


def _choose(told: list[Finding], clue: Clue | None, exit: Exit | None) -> tuple[Signature, Finding | None]:
    """The most believable signature; see the module's text for the order."""
    for finding in told:
        signature = finding.signature
        assert signature is not None
        if signature.grade in ("cause", "general"):
            return signature, finding
    if clue is not None:
        return by_clue(clue), None
    for finding in told:
        signature = finding.signature
        assert signature is not None
        # An engine that serves prints notes, too: they explain no end.
        if signature.grade != "note" or exit is None:
            return signature, finding
    if exit is not None and exit.code == 0 and exit.reason is None:
        return by_clue("silent_exit"), None
    return by_clue("unknown"), None


_SIGNALS: dict[int, Clue] = {
    signal.SIGKILL: "signal_kill",
    signal.SIGBUS: "signal_bus",
    signal.SIGSEGV: "signal_segv",
    signal.SIGABRT: "signal_abort",
    signal.SIGILL: "signal_ill",
    signal.SIGFPE: "signal_fpe",
    signal.SIGTERM: "signal_term",
}
_DEADLINES: dict[Deadline, Clue] = {
    "load": "deadline_load",
    "warm_up": "deadline_warm_up",
    "step": "deadline_step",
    "decode": "deadline_decode",
    "job": "deadline_job",
}


def _clue(exit: Exit | None, evidence: Evidence) -> Clue | None:
    """What exit, deadline and the worker's last message say without any log."""
    if evidence.deadline is not None:
        return _DEADLINES[evidence.deadline]
    if evidence.failure_kind == "frames":
        return "frames"
    if evidence.failure_kind == "storage":
        return "storage"
    if exit is None or exit.reason is not None:  # alive, or ended by ourselves: the signal was ours
        return None
    number = exit.signal
    if number is None and exit.code is not None and 128 < exit.code < 160:
        number = exit.code - 128  # a shell or a container runtime between us and the process
    if number is None:
        return None
    if number == signal.SIGKILL and evidence.host_oom_kills:
        return "host_memory"
    return _SIGNALS.get(number)


def _with_counters(signature: Signature, evidence: Evidence) -> Signature:
    """A worker that was killed was killed for memory, or was not, where the kernel has counted."""
    if signature.id == "worker_sigkill" and evidence.host_oom_kills is not None:
        return by_clue("host_memory" if evidence.host_oom_kills else "signal_kill")
    return signature


def _first_error(found: Found) -> Finding | None:
    return found.exception or found.logged


def _diagnosis(
    signature: Signature, finding: Finding | None, found: Found, exit: Exit | None, evidence: Evidence
) -> Diagnosis:
    line = finding.line if finding else None
    cause = signature.cause
    if signature.clue == "unknown":
        said = line or evidence.failure or (str(exit) if exit else None) or found.last_line
        cause = f"{cause.rstrip('.')}: {said.rstrip('.')}." if said else cause
    ended = exit is not None
    client_error = signature.grade == "client"
    # A file that could not be written is no reason to end an engine that can go on.
    spared = not ended and evidence.healthy and evidence.failure_kind == "storage"
    return Diagnosis(
        signature=signature.id,
        known=signature.clue != "unknown",
        cause=cause,
        action="none" if spared else signature.action,
        rungs=signature.rungs,
        patience=signature.patience,
        poisons=signature.poisons,
        retry=signature.retry,
        ended=ended,
        usable=not ended and not signature.poisons and (evidence.healthy or client_error),
        client_error=client_error,
        line=line,
        excerpt=tuple(finding.excerpt) if finding else (),
        notes=found.notes,
        sources=signature.sources,
    )
