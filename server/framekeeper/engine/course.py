"""An engine's course over its processes: the rung it runs on, what it remembers, and what comes next."""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import structlog

from framekeeper import metrics
from framekeeper.database.pool import Database
from framekeeper.diagnosis.incident import Incident, Memory
from framekeeper.diagnosis.ladder import Decision, History, Policy, Situation, decide, way_up
from framekeeper.diagnosis.limit import Limit, Shape
from framekeeper.engine.inquest import Inquest
from framekeeper.engine.persist import persist
from framekeeper.engine.status import EngineStatus, registered
from framekeeper.jobs import incidents
from framekeeper.jobs.engines import EngineState
from framekeeper.jobs.incidents import IncidentRow, Rung
from framekeeper.profiles.facts import HostFacts
from framekeeper.profiles.launch import Launch, resolve
from framekeeper.profiles.schema import Profile
from framekeeper.round import went_well
from framekeeper.settings import Settings

log = structlog.get_logger()

#: Seconds between two looks whether an operator has changed the course.
WATCH_SECONDS = 3.0
#: The pause before a start that could not even be tried, and of a ladder that lost its numbers.
CANNOT_START_SECONDS = 30.0


class Course:
    """What an engine does next. `changed` is set when an operator, or a quiet time, has changed the rung."""

    def __init__(
        self,
        *,
        settings: Settings,
        database: Database,
        profile: Profile,
        facts: HostFacts,
        group: int,
        status: EngineStatus,
    ) -> None:
        self.changed = asyncio.Event()
        self.rung = Rung()
        self._settings = settings
        self._database = database
        self._profile = profile
        self._facts = facts
        self._group = group
        self._status = status
        self._policy = Policy(quiet_seconds=settings.rung_quiet_seconds or None)
        self._uncompiled: str | None = None
        self._decision: Decision | None = None
        self._cannot_start: str | None = None
        self._incident: Incident | None = None
        self._ended_at = 0.0
        self._known: tuple[Inquest, Incident, Decision] | None = None
        self._log = log.bind(engine=status.id)

    # -- what is started ------------------------------------------------------------------------------------

    @property
    def launch(self) -> Launch:
        """What to start on the present rung, under the present limit."""
        launch = resolve(
            self._profile,
            self._facts,
            group=self._group,
            rung=self.rung.rung,
            groups=self._settings.engine_groups,
        )
        limit = self._limit()
        if limit is None:
            return launch
        most = {"size": limit["size"], "num_frames": limit["num_frames"]}
        lower = launch.profile.model_copy(
            update={
                "admits": launch.profile.admits.model_copy(update=most),
                "warm_up": launch.profile.warm_up.model_copy(update={"size": None, "num_frames": None}),
            }
        )
        return dataclasses.replace(launch, profile=lower)

    @property
    def limit_ends(self) -> float | None:
        """When the present limit on shapes ends, in seconds since the epoch."""
        limit = self._limit()
        return limit["until"] if limit else None

    @property
    def degraded(self) -> str | None:
        """Why the engine serves on less than its profile, or None."""
        if self.rung.rung == 0 and self._limit() is None:
            return self._uncompiled
        return self.rung.reason or f"on fallback {self.launch.rung_name}"

    def _limit(self) -> dict[str, Any] | None:
        limit = self.rung.admit_limit
        return limit if limit and limit["until"] > time.time() else None

    def show(self) -> None:
        """Tell the gateways what is admitted now, and why less than the profile says."""
        admits = registered(self.launch.profile)
        limit = self._limit()
        if limit:
            admits |= {"reduced": {"reason": limit["reason"], "until": limit["until"]}}
        self._status.admits = admits
        metrics.engine_rung.labels(self._status.id).set(self.rung.rung)

    # -- what is remembered ---------------------------------------------------------------------------------

    async def load(self) -> None:
        """Take up the rung of an earlier run. One that the profile no longer has counts as the top."""
        kept = await persist(lambda: incidents.rung_of(self._database, self._status.id, self._profile.name))
        if kept is not None:
            known = kept.rung <= len(self._profile.fallbacks)
            self.rung = kept if known else Rung(reset_at=kept.reset_at)
        self.show()

    async def _keep(self, rung: Rung) -> None:
        self.rung = rung
        self.show()
        await persist(lambda: incidents.set_rung(self._database, self._status.id, self._profile.name, rung))

    async def watch(self) -> None:
        """Notice for ever that an operator has put the engine back, or that its quiet time is over."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            await went_well(self._look, "looking at the engine's rung")

    async def _look(self) -> None:
        kept = await incidents.rung_of(self._database, self._status.id, self._profile.name)
        if kept is not None and kept.reset_at != self.rung.reset_at:
            self.rung, self._decision = kept, None
            self._log.info("an operator has put the engine back on its profile")
            self._climb("an operator has put the engine back on its profile")
        elif self.rung.rung > 0 and self._status.state.serving and self._policy.quiet_seconds:
            await self._try_quiet_time()

    async def _try_quiet_time(self) -> None:
        higher = way_up(await self._history(None), self.rung.rung, now=time.time(), policy=self._policy)
        if higher < self.rung.rung:
            reason = f"quiet for long enough, so rung {higher} is tried again"
            await self._keep(dataclasses.replace(self.rung, rung=higher, reason=reason if higher else None))
            self._climb(reason)

    def _climb(self, reason: str) -> None:
        self.show()
        self._log.info("course changed", reason=reason)
        self.changed.set()

    # -- what ended -----------------------------------------------------------------------------------------

    def cannot_start(self, reason: str) -> None:
        """A process could not even be made."""
        self._cannot_start = reason

    async def record(self, inquest: Inquest, *, served: bool) -> tuple[Incident, Decision]:
        """Keep the end of a process as an incident and decide what follows; once for each process."""
        if self._known is not None and self._known[0] is inquest:
            return self._known[1:]
        decision = decide(await self._situation(inquest))
        incident = self._incident_of(inquest, decision, served)
        self._known = (inquest, incident, decision)
        self._decision, self._incident, self._ended_at = decision, incident, time.monotonic()
        metrics.count_incident(incident.signature)
        self._log.error(
            "engine ended",
            incident=incident.id,
            signature=incident.signature,
            cause=incident.cause,
            first_error=incident.line,
            exit=str(inquest.exit),
            decision=decision.action,
        )
        row = IncidentRow(
            id=incident.id,
            at=incident.time,
            host=self._settings.host_id,
            engine_id=incident.engine,
            profile=incident.profile,
            rung=incident.rung,
            phase=incident.phase or "",
            video_id=incident.job,
            attempt=incident.attempt,
            signature=incident.signature,
            record=incident.to_row() | {"time": incident.time.timestamp()},
            ready_again_seconds=None,
        )
        await persist(lambda: incidents.store(self._database, row))
        await self._follow(decision)
        return incident, decision

    async def _situation(self, inquest: Inquest) -> Situation:
        assert inquest.diagnosis is not None
        assert inquest.end is not None
        video = inquest.end.video
        shape = None
        if video is not None:
            request = video.request
            shape = Shape(width=request.width, height=request.height, num_frames=request.num_frames)
        return Situation(
            diagnosis=inquest.diagnosis,
            history=await self._history(video.engine_deaths if video else None),
            profile=self._profile,
            rung=self.rung.rung,
            now=time.time(),
            job=video is not None,
            shape=shape,
            policy=self._policy,
        )

    async def _history(self, job_ends: int | None) -> History:
        records = await persist(lambda: incidents.past(self._database, self._status.id, self._profile.name))
        past = []
        for record in records:
            at = datetime.fromtimestamp(record["time"], UTC)
            past.append(Incident.from_row(record | {"time": at}).as_past())
        return History(past=tuple(past), job_ends=job_ends or 0)

    def _incident_of(self, inquest: Inquest, decision: Decision, served: bool) -> Incident:
        assert inquest.diagnosis is not None
        assert inquest.end is not None
        video = inquest.end.video
        return Incident.of(
            inquest.diagnosis,
            decision,
            inquest.exit,
            id=f"inc_{uuid4().hex[:12]}",
            time=datetime.now(UTC),
            engine=self._status.id,
            profile=self._profile.name,
            rung=self.rung.rung,
            rung_name=self.launch.rung_name,
            served=served,
            phase=inquest.end.phase,
            job=video.id if video else None,
            attempt=video.attempt if video else None,
            memory=Memory(allocated_bytes=inquest.allocated_bytes, resident_bytes=inquest.resident_bytes),
            stacks=inquest.stacks,
        )

    async def _follow(self, decision: Decision) -> None:
        """Make the decision true for the next start."""
        match decision.action:
            case "next_rung":
                await self._keep(dataclasses.replace(self.rung, rung=decision.rung, reason=decision.reason))
            case "reduce_shape" if decision.limit is not None:
                await self._keep(
                    dataclasses.replace(
                        self.rung, admit_limit=_stored(decision.limit), reason=decision.reason
                    )
                )
            case "clear_caches":
                await asyncio.to_thread(_clear, self.launch.cache_directory)
            case "stop":
                # Kept, so that an operator's reset can be noticed.
                await self._keep(dataclasses.replace(self.rung, reason=decision.reason))

    async def ready(self, facts: dict[str, Any]) -> None:
        """A process has proved itself; `facts` are those of its load."""
        self._uncompiled = uncompiled(self.launch.profile, facts)
        incident = self._incident
        if incident is not None:
            seconds = time.monotonic() - self._ended_at
            self._incident = None
            metrics.ready_again_seconds.observe(seconds)
            await persist(lambda: incidents.ready_again(self._database, incident.id, seconds))

    async def next_start(self) -> float | None:
        """Seconds until the next start after an unplanned end, None for not without help; see the status."""
        self.changed.clear()
        if self._cannot_start is not None:
            reason, self._cannot_start = self._cannot_start, None
            self._status.enter(EngineState.FAILED, detail=f"{reason}; next try in {CANNOT_START_SECONDS:g} s")
            return CANNOT_START_SECONDS
        decision = self._decision
        if decision is None:  # an operator has just put the engine back
            return 0.0
        incident = f" (incident {self._incident.id})" if self._incident else ""
        if decision.action == "stop":
            self._status.enter(EngineState.FAILED, detail=decision.reason + incident)
            return None
        when = f" Next start in {decision.delay_seconds:g} s." if decision.delay_seconds else ""
        self._status.enter(EngineState.RESTARTING, detail=f"{decision.reason}{when}{incident}")
        return decision.delay_seconds


def uncompiled(profile: Profile, facts: dict[str, Any]) -> str | None:
    """What a profile wanted compiled and is not; None when all is as it should be, or nobody can tell.

    vllm-omni goes on in silence with a transformer that it could not compile
    (https://github.com/vllm-project/vllm-omni/issues/1535).
    """
    counts = facts.get("compiled_modules")
    if profile.compile == "off" or counts is None:
        return None
    eager = [str(number + 1) for number, count in enumerate(counts) if count == 0]
    if not eager:
        return None
    return (
        f"compile: {profile.compile}, but transformer {' and '.join(eager)} of {len(counts)} is not compiled"
    )


def _stored(limit: Limit) -> dict[str, Any]:
    return {
        "size": f"{limit.shape.width}x{limit.shape.height}",
        "num_frames": limit.shape.num_frames,
        "until": limit.until,
        "reason": limit.reason,
    }


def _clear(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
