"""What the gateway answers; one file a noun."""

from __future__ import annotations

from fastapi import FastAPI

from framekeeper.gateway import openapi
from framekeeper.gateway.routes import (
    batch,
    engines,
    events,
    health,
    incidents,
    metrics,
    models,
    page,
    queue,
    sync,
    videos,
)
from framekeeper.gateway.schemas import ErrorAnswer

#: The API.
ROUTERS = tuple(
    part.router for part in (videos, batch, sync, events, queue, models, engines, incidents, health, metrics)
)


def install(app: FastAPI) -> None:
    """The API with its description, and the page."""
    for router in ROUTERS:
        app.include_router(router, responses={"default": {"model": ErrorAnswer}})
    app.include_router(page.router)
    openapi.install(app)
