"""Looking into the end of one worker process: once, when it is gone, whoever asks first."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args

from framekeeper.diagnosis.classify import Diagnosis, Evidence, classify
from framekeeper.diagnosis.incident import Incident
from framekeeper.diagnosis.ladder import Decision
from framekeeper.engine.end import End, Verdict
from framekeeper.engine.exit import Exit
from framekeeper.engine.link import Link
from framekeeper.engine.process import WorkerProcess
from framekeeper.engine.protocol import PhaseName

#: Lines of stacks that an incident keeps.
STACK_LINES = 400

#: Counters of control groups, version 2 and version 1.
_CGROUP_EVENTS = (
    Path("/sys/fs/cgroup/memory.events"),
    Path("/sys/fs/cgroup/memory/memory.oom_control"),
)


def oom_kills() -> int | None:
    """Processes the kernel has killed for memory in our cgroup so far, or None where nobody counts."""
    for path in _CGROUP_EVENTS:
        with suppress(OSError, ValueError, KeyError):
            counters = dict(line.split() for line in path.read_text().splitlines())
            return int(counters["oom_kill"])
    return None


class Inquest:
    """The end of one process. `diagnosis` and `end` are set when it has been looked into."""

    def __init__(self, process: WorkerProcess, link: Link) -> None:
        self.process = process
        self._link = link
        self.diagnosis: Diagnosis | None = None
        self.end: End | None = None
        self.exit: Exit | None = None
        self._oom_kills = oom_kills()
        self._lock = asyncio.Lock()

    @property
    def allocated_bytes(self) -> int | None:
        """What the device allocator held at the last step that was reported."""
        return self._link.last_memory

    @property
    def resident_bytes(self) -> int | None:
        """What the worker's processes held after its last job."""
        return self._link.last_resident

    @property
    def stacks(self) -> str | None:
        """The stacks that a hung worker wrote before it was ended."""
        lines = self.process.lines()
        begins = [number for number, line in enumerate(lines) if "most recent call first" in line]
        return (
            "\n".join(lines[begins[0] :][:STACK_LINES]) if begins and self.end and self.end.deadline else None
        )

    async def look(self, end: End) -> Diagnosis:
        """Wait for the process to be gone and name the cause; a second call gives the first one's answer."""
        async with self._lock:
            if self.diagnosis is None:
                self.exit = await self.process.wait()
                self.end = end
                self.diagnosis = await asyncio.to_thread(self._classify, end, self.exit)
            return self.diagnosis

    def _classify(self, end: End, exit_: Exit) -> Diagnosis:
        failure = end.failure
        phase: Any = end.phase if end.phase in get_args(PhaseName) else None
        evidence = Evidence(
            phase=phase,
            deadline=end.deadline,
            failure=failure.message if failure else None,
            failure_kind=failure.kind if failure else None,
            trace=failure.trace if failure else None,
            healthy=failure.healthy if failure else False,
            host_oom_kills=self._killed_for_memory(),
        )
        return classify(self.process.lines(), exit_, evidence)

    def _killed_for_memory(self) -> int | None:
        now = oom_kills()
        return None if now is None or self._oom_kills is None else now - self._oom_kills


def verdict(diagnosis: Diagnosis, incident: Incident, decision: Decision, end: End) -> Verdict:
    """What the end means for the job: its owner gets one sentence and the incident's id."""
    # Somebody outside killed the process: that is no sign against the job.
    from_outside = diagnosis.signature in OUTSIDE
    cause = diagnosis.cause
    if end.failure is not None and end.failure.kind == "frames":
        cause = f"The engine made no picture: {end.failure.message}"
    return Verdict(
        incident_id=incident.id,
        sentence=f"{cause.rstrip('.')} (while {end.phase.replace('_', ' ')}; incident {incident.id}).",
        retry=decision.job in ("retry", "quarantine"),
        counts=decision.counts,
        engine_died=decision.counts and not from_outside and not diagnosis.client_error,
        client_error=diagnosis.client_error,
    )


#: Signatures of an end that came from outside the engine.
OUTSIDE = frozenset({"killed_from_outside", "terminated_from_outside"})
