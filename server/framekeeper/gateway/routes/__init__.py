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
    reference,
    sync,
    videos,
)
from framekeeper.gateway.schemas import ErrorAnswer

#: The API.
ROUTERS = tuple(
    part.router for part in (videos, batch, sync, events, queue, models, engines, incidents, health, metrics)
)


def install(app: FastAPI) -> None:
    """The API with its description, the page, and the description as one."""
    for router in ROUTERS:
        app.include_router(router, responses={"default": {"model": ErrorAnswer}})
    app.include_router(page.router)
    app.include_router(reference.router)
    openapi.install(app)
