"""A start that was refused, shown where people look: the engines' rows say `failed` and why."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import psycopg
import structlog

from framekeeper.database.pool import Database
from framekeeper.engine.namesake import namesake
from framekeeper.engine.status import registered
from framekeeper.errors import DatabaseUnavailable
from framekeeper.jobs import engines
from framekeeper.jobs.engines import EngineState
from framekeeper.profiles.faults import ProfileError
from framekeeper.profiles.load import load_profile
from framekeeper.profiles.schema import Profile
from framekeeper.settings import Settings

log = structlog.get_logger()
# As long as it takes to see whether another supervisor has this name, and a while for the database.
_SECONDS = 5.0
# Longer details help nobody in a health answer; standard error has everything.
_CHARACTERS = 2_000


def publish(settings: Settings, reason: str) -> None:
    """Register this host's engines as failed with `reason`, which /health/startup of the gateway shows.

    Best effort within a few seconds: where the database is away or holds no schema yet, or the profile itself
    cannot be read, standard error is all there is. The next start registers the engines anew.
    """
    if not settings.database_url:
        return
    try:
        profile = load_profile(settings.profile, settings.profiles)
    except ProfileError:
        return
    try:
        asyncio.run(asyncio.wait_for(_publish(settings, profile, reason[:_CHARACTERS]), _SECONDS))
    except (DatabaseUnavailable, psycopg.Error, TimeoutError) as error:
        log.warning("the refusal is not in the database", error=str(error).strip() or type(error).__name__)


async def _publish(settings: Settings, profile: Profile, reason: str) -> None:
    database = Database(settings.database_url, size=1, wait_seconds=_SECONDS / 2, name="framekeeper-refusal")
    await database.open()
    run_id = uuid4().hex
    try:
        if await namesake(database, settings) is not None:
            return  # those are its engines
        for group in range(settings.engine_groups):
            engine_id = f"{settings.host_id}/{group}"
            await engines.register(
                database,
                engine_id=engine_id,
                host=settings.host_id,
                run_id=run_id,
                model=profile.serves,
                profile=profile.name,
                runtime=profile.runtime,
                admits=registered(profile),
                defaults=profile.defaults.model_dump(mode="json"),
            )
            await engines.report(
                database,
                engine_id=engine_id,
                run_id=run_id,
                state=EngineState.FAILED,
                phase="refused",
                detail=reason,
                restarts=0,
                facts=None,
            )
    finally:
        await database.close()
