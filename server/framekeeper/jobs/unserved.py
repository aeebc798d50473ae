"""Models that no engine serves: since when and why, and the end of the jobs that wait for one too long.

Time is the database's alone, so that hosts whose clocks differ agree. Pure but for `Watch`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from framekeeper.database.pool import Database
from framekeeper.errors import NotServed
from framekeeper.jobs import settle
from framekeeper.jobs.engines import Engine, EngineState, all_engines
from framekeeper.jobs.video import COLUMNS, Video

#: A process must have seen a model unserved for so long, by its own clock, before it ends a job: whoever was
#: just started, or has just got its database back, gives the engines time to come as well.
PATIENCE_SECONDS = 900.0
#: Waiting jobs are given so many times as long while an engine of their model is being started. Not for ever:
#: one that dies in every start would keep them for ever, too.
STARTING_FACTOR = 2

#: Every model that ever was, and when it was last seen served (or first seen at all).
SERVED = """
    SELECT model, least(served_at, clock_timestamp()) AS served_at,
        greatest(0, extract(epoch FROM clock_timestamp() - served_at))::float8 AS seconds FROM model_service
"""
# In one order, so that two processes never wait for each other. A time to come is from before the database's
# clock was put back.
_NOTE = """
    INSERT INTO model_service AS known (model)
    SELECT model FROM (SELECT model FROM engines UNION SELECT model FROM videos WHERE state = 'queued') found
    ORDER BY model
    ON CONFLICT (model) DO UPDATE SET served_at = clock_timestamp()
        WHERE known.served_at > clock_timestamp()
            OR known.model = ANY(%(serving)s) AND known.served_at < clock_timestamp() - interval '1 s'
"""
_WAITED = f"""
    SELECT {", ".join("v." + name for name in COLUMNS.split(", "))}
    FROM videos v JOIN model_service s ON s.model = v.model
    WHERE v.state = 'queued' AND v.model = ANY(%(models)s)
        AND greatest(s.served_at, v.created_at) < clock_timestamp() - make_interval(secs =>
            %(allowed)s * CASE WHEN v.model = ANY(%(starting)s) THEN {STARTING_FACTOR} ELSE 1 END)
    ORDER BY v.created_at, v.id
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unserved:
    """A model that no engine serves. `since` is None where nobody has looked yet; `why` says what its engines
    do; a job waits `allowed` seconds at most, 0 for ever."""

    model: str
    since: datetime | None
    why: str
    starting: bool
    allowed: float

    def sentence(self, accepted_at: datetime) -> str:
        """Why a job accepted at that time waits, and how long it will."""
        since = f"since {_moment(self.since)}" if self.since else "yet"
        end = "It is kept until one does."
        if self.allowed:
            seconds = self.allowed * (STARTING_FACTOR if self.starting else 1)
            last = max(self.since or accepted_at, accepted_at) + timedelta(seconds=seconds)
            end = f"It fails if none does by {_moment(last)}."
        return f"No engine serves {self.model!r} {since}; {self.why}. {end}"

    @property
    def error(self) -> NotServed:
        """What a job ends with that has waited too long."""
        since = f" since {_moment(self.since)}" if self.since else ""
        return NotServed(
            f"No engine has served {self.model!r}{since}; {self.why}. A video waits for one "
            f"{_duration(self.allowed)} at most, and twice as long while one is being started."
        )


@dataclass(frozen=True, slots=True)
class TooLarge:
    """Of a job that no engine of its model takes before a limit ends."""

    why: str

    def sentence(self, _: datetime) -> str:
        """Why it waits, and until when."""
        return f"No engine takes a video of this size at present: {self.why}"


def unserved(
    engines: Iterable[Engine], served: Iterable[Mapping[str, Any]], *, stale_seconds: float, allowed: float
) -> Callable[[str], Unserved | None]:
    """Who asks with a model's name learns how it is unserved, or None. `served` are rows of SERVED."""
    of_model: dict[str, list[Engine]] = {}
    for engine in engines:
        of_model.setdefault(engine.model, []).append(engine)
    since: dict[str, datetime] = {row["model"]: row["served_at"] for row in served}

    def look_up(model: str) -> Unserved | None:
        mine = of_model.get(model, [])
        alive = [engine for engine in mine if engine.alive(stale_seconds)]
        if any(engine.state.serving for engine in alive):
            return None
        return Unserved(
            model=model,
            since=since.get(model),
            why=_why(mine, alive),
            starting=any(engine.state is not EngineState.FAILED for engine in alive),
            allowed=allowed,
        )

    return look_up


class Watch:
    """One process's look at what no engine serves, again and again. Several may look at once."""

    def __init__(
        self,
        *,
        stale_seconds: float,
        allowed: float,
        patience: float = PATIENCE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stale_seconds, self._allowed = stale_seconds, allowed
        self._patience, self._clock = min(allowed, patience), clock
        #: When this process began to see a model unserved, or no living engine at all (None).
        self._since: dict[str | None, float] = {}

    @property
    def alone_seconds(self) -> float:
        """How long this process has seen no engine whose supervisor lives."""
        since = self._since.get(None)
        return 0.0 if since is None else self._clock() - since

    async def fail(self, database: Database) -> list[Video]:
        """Note what is served; fail and return the jobs that have waited too long for an engine.

        Raises DatabaseUnavailable, and is patient anew after it: every engine looks silent then.
        """
        try:
            return await self._fail(database)
        except Exception:
            self._since.clear()
            raise

    async def _fail(self, database: Database) -> list[Video]:
        engines = await all_engines(database)
        alive = [engine for engine in engines if engine.alive(self._stale_seconds)]
        serving = sorted({engine.model for engine in alive if engine.state.serving})
        await database.execute(_NOTE, {"serving": serving})
        served = await database.fetch_all(SERVED)
        look_up = unserved(engines, served, stale_seconds=self._stale_seconds, allowed=self._allowed)
        found = {row["model"]: each for row in served if (each := look_up(row["model"])) is not None}
        self._see([*found, *([] if alive else [None])])
        now = self._clock()
        models = [model for model in found if now - self._since[model] >= self._patience]
        if not self._allowed or not models:
            return []
        rows = await database.fetch_all(
            _WAITED,
            {
                "models": models,
                "starting": [model for model in models if found[model].starting],
                "allowed": self._allowed,
            },
        )
        failed = []
        for row in rows:
            video = Video.from_row(row)
            after = await settle.fail_queued(database, video, found[video.model].error)
            if after is not None:
                failed.append(after)
        return failed

    def _see(self, seen: Sequence[str | None]) -> None:
        """Keep since when each of these is so, and forget the others."""
        now = self._clock()
        self._since = {each: self._since.get(each, now) for each in seen}


def _why(mine: Sequence[Engine], alive: Sequence[Engine]) -> str:
    """What the engines of a model do, of the one that is nearest to serving."""
    if not mine:
        return "no host has it any more"
    if not alive:
        last = min(mine, key=lambda engine: engine.age_seconds)
        done = "was stopped" if last.state is EngineState.STOPPED else "is silent"
        return f"its last engine, {last.id}, {done}"
    engine = min(alive, key=lambda engine: (engine.state is EngineState.FAILED, engine.id))
    state = "has failed" if engine.state is EngineState.FAILED else f"is {engine.state}"
    detail = f": {engine.detail.rstrip('.')}" if engine.detail else ""
    return f"{engine.id} {state}{detail}"


def _moment(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def _duration(seconds: float) -> str:
    return f"{seconds / 3600:g} h" if seconds >= 3600 else f"{seconds / 60:g} min"
