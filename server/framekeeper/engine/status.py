"""How an engine is, kept in one place: for its own port, the database and the metrics."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

from framekeeper import metrics
from framekeeper.database.pool import Database
from framekeeper.engine.persist import persist
from framekeeper.jobs import engines
from framekeeper.jobs.engines import EngineState
from framekeeper.profiles.schema import Profile
from framekeeper.profiles.wan import square
from framekeeper.round import went_well
from framekeeper.settings import Settings


def registered(profile: Profile) -> dict[str, Any]:
    """What an engine of this profile admits, as gateways read it: `multiple` is what sides are made of."""
    return profile.admits.model_dump(mode="json") | {"multiple": square(profile)}


class EngineStatus:
    """State, phase and detail of one engine under one run of its supervisor."""

    def __init__(
        self, *, settings: Settings, database: Database, profile: Profile, group: int, run_id: str
    ) -> None:
        self.id = f"{settings.host_id}/{group}"
        self.profile = profile
        self.admits = registered(profile)
        self.state = EngineState.STARTING
        self.phase: str | None = None
        self.detail: str | None = None
        self.since = time.monotonic()
        self.restarts = 0
        self.facts: dict[str, Any] = {}
        #: Set when another supervisor has taken this engine's name.
        self.replaced = asyncio.Event()
        self._settings = settings
        self._database = database
        self._run_id = run_id
        self._changed = asyncio.Event()

    @property
    def run_id(self) -> str:
        """This run of the supervisor; jobs are claimed in its name."""
        return self._run_id

    def begin(self) -> None:
        """Show the engine in the metrics, with every series it can have."""
        metrics.engine_info.labels(
            engine=self.id,
            model=self.profile.serves,
            profile=self.profile.name,
            runtime=self.profile.runtime,
        ).set(1)
        metrics.engine_restarts.labels(engine=self.id)
        for result in metrics.START_RESULTS:
            metrics.engine_starts.labels(engine=self.id, result=result)

    def enter(self, state: EngineState, *, phase: str | None = None, detail: str | None = None) -> None:
        """Go into a state; the clock of the state starts anew when state or phase differ."""
        if (state, phase) != (self.state, self.phase):
            self.since = time.monotonic()
        self.state, self.phase, self.detail = state, phase, detail
        for each in EngineState:
            metrics.engine_state.labels(engine=self.id, state=each.value).set(each is state)
        self._changed.set()

    def snapshot(self) -> dict[str, Any]:
        """For /health/startup of the supervisor."""
        return {
            "id": self.id,
            "model": self.profile.serves,
            "profile": self.profile.name,
            "state": self.state.value,
            "phase": self.phase,
            "seconds": round(time.monotonic() - self.since, 1),
            "detail": self.detail,
            "restarts": self.restarts,
        }

    async def register(self) -> None:
        """Enter the engine into the database, under this run of the supervisor."""
        await persist(
            lambda: engines.register(
                self._database,
                engine_id=self.id,
                host=self._settings.host_id,
                run_id=self._run_id,
                model=self.profile.serves,
                profile=self.profile.name,
                runtime=self.profile.runtime,
                admits=self.admits,
                defaults=self.profile.defaults.model_dump(mode="json"),
            )
        )

    async def publish(self) -> None:
        """Write the state to the database, as heartbeat too. Raises DatabaseUnavailable."""
        mine = await engines.report(
            self._database,
            engine_id=self.id,
            run_id=self._run_id,
            state=self.state,
            phase=self.phase,
            detail=self.detail,
            restarts=self.restarts,
            admits=self.admits,
            facts=self.facts or None,
        )
        if not mine:
            self.replaced.set()

    async def publish_changes(self, every_seconds: float) -> None:
        """Publish each change at once, and the heartbeat every so often, for ever."""
        while True:
            self._changed.clear()
            if not await went_well(self.publish, "publishing the engine's state"):
                await asyncio.sleep(1)
                continue
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), every_seconds)
