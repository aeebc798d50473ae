"""The gateway's application; gunicorn.py runs it, one a process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from framekeeper import __version__
from framekeeper.database.pool import Database
from framekeeper.gateway import errors, layers, routes, upkeep
from framekeeper.gateway.auth import KnownKeys
from framekeeper.gateway.changes import Changes
from framekeeper.gateway.metrics import begin as begin_metrics
from framekeeper.gateway.outlook import Outlook
from framekeeper.media.condition import Condition
from framekeeper.settings import Settings, SettingsError, load


def create_app(settings: Settings | None = None) -> FastAPI:
    """Build it. Raises SettingsError; a database that is away is no reason not to start."""
    settings = settings or load()
    if not settings.database_url:
        raise SettingsError(
            "FRAMEKEEPER_DATABASE_URL is not set: set a PostgreSQL URL, or start with `framekeeper run`."
        )

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        name = "framekeeper-gateway"
        database = Database(settings.database_url, wait_seconds=4, fresh_seconds=1, name=name)
        app.state.database, app.state.changes = database, (changes := Changes(database))
        await database.open()
        begin_metrics()
        try:
            async with upkeep.going_on(database, settings):
                yield
        finally:
            await changes.close()
            await database.close()

    app = FastAPI(
        title="Framekeeper",
        version=__version__,
        description="Text to video, in the shape of OpenAI's Videos API.",
        lifespan=lifespan,
        redirect_slashes=False,
        # Ours (routes/reference.py): FastAPI's pages load their scripts from elsewhere.
        docs_url=None,
        redoc_url=None,
    )
    app.state.settings = settings
    app.state.media = Condition(settings.media_directory, settings.min_free_bytes)
    app.state.known_keys, app.state.outlook = KnownKeys(), Outlook(settings)
    layers.install(app, settings)
    errors.install(app)
    routes.install(app)
    return app
