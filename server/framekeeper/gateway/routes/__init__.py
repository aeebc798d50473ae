"""What the gateway answers; one file a noun."""

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

#: The API.
ROUTERS = tuple(
    part.router for part in (videos, batch, sync, events, queue, models, engines, incidents, health, metrics)
)
#: The page and its parts.
PAGE = page.router
