"""The supervisor's own small port: live, startup, metrics."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any

import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from framekeeper import metrics
from framekeeper.errors import HostNotAllowed
from framekeeper.gateway.reach import Names
from framekeeper.jobs.engines import EngineState
from framekeeper.jobs.fields import shown
from framekeeper.settings import Settings

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


class Guard:
    """ASGI middleware: only names that no stranger can have are answered, as by a gateway without keys."""

    def __init__(self, app: ASGIApp, names: Names) -> None:
        self.app = app
        self.names = names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        host = Headers(scope=scope).get("host") if scope["type"] == "http" else None
        if self.names.include(host):
            await self.app(scope, receive, send)
            return
        error = HostNotAllowed(
            f"The supervisor answers to local names only, not to {shown(host)}: set "
            "FRAMEKEEPER_ALLOWED_HOSTS to the names under which it is reached."
        )
        body = {"error": {"message": error.message, "type": error.type, "code": error.code}}
        await JSONResponse(body, error.status)(scope, receive, send)


def application(engines: Sequence[EngineStatus], names: Names) -> Starlette:
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
        ],
        middleware=[Middleware(Guard, names=names)],
    )


class _Server(uvicorn.Server):
    """uvicorn without signal handlers: the supervisor has its own."""

    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        yield


@contextlib.asynccontextmanager
async def listening(engines: Sequence[EngineStatus], settings: Settings) -> AsyncIterator[None]:
    """Serve the port while the context is open."""
    config = uvicorn.Config(
        application(engines, Names(settings, settings.supervisor_host)),
        host=settings.supervisor_host,
        port=settings.supervisor_port,
        log_config=None,
        access_log=False,
        lifespan="off",
    )
    server = _Server(config)
    serving = asyncio.create_task(server.serve(), name="supervisor port")
    try:
        yield
    finally:
        server.should_exit = True
        await serving
