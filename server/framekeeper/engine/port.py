"""The supervisor's own small port: live, startup, metrics."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any

import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from framekeeper import metrics
from framekeeper.jobs.engines import EngineState

if TYPE_CHECKING:
    from framekeeper.engine.status import EngineStatus


def startup(engines: Sequence[EngineStatus]) -> dict[str, Any]:
    """How far the start is: `ready` when every engine serves, `failed` when all have failed."""
    states = [engine.state for engine in engines]
    if all(state.serving for state in states):
        status = "ready"
    elif all(state is EngineState.FAILED for state in states):
        status = "failed"
    else:
        status = "starting"
    return {"status": status, "engines": [engine.snapshot() for engine in engines]}


def application(engines: Sequence[EngineStatus]) -> Starlette:
    """The three routes. Live is 503 when every engine has failed: a container platform may act on that."""

    def live(_: Request) -> Response:
        failed = all(engine.state is EngineState.FAILED for engine in engines)
        body = {
            "status": "failed" if failed else "live",
            "engines": [engine.snapshot() for engine in engines],
        }
        return JSONResponse(body, 503 if failed else 200)

    def started(_: Request) -> Response:
        body = startup(engines)
        return JSONResponse(body, 200 if body["status"] == "ready" else 503)

    def scrape(_: Request) -> Response:
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)

    return Starlette(
        routes=[
            Route("/health/live", live),
            Route("/health/startup", started),
            Route("/metrics", scrape),
        ]
    )


class _Server(uvicorn.Server):
    """uvicorn without signal handlers: the supervisor has its own."""

    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        yield


@contextlib.asynccontextmanager
async def listening(engines: Sequence[EngineStatus], host: str, port: int) -> AsyncIterator[None]:
    """Serve the port while the context is open."""
    config = uvicorn.Config(
        application(engines), host=host, port=port, log_config=None, access_log=False, lifespan="off"
    )
    server = _Server(config)
    serving = asyncio.create_task(server.serve(), name="supervisor port")
    try:
        yield
    finally:
        server.should_exit = True
        await serving
