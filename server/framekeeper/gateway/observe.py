"""What surrounds every request: its id, its deadline, its log line, its metrics, and the last catch."""

from __future__ import annotations

import asyncio
import re
import time
from http import HTTPStatus
from uuid import uuid4

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from framekeeper.errors import DatabaseUnavailable, FramekeeperError
from framekeeper.gateway import metrics
from framekeeper.gateway.errors import answer

log = structlog.get_logger(__name__)

REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}", re.ASCII)
#: Until an answer begins. Waiting for a free connection is bounded in the pool; this bounds a database that
#: took the question and answers no more.
ANSWER_SECONDS = 45.0
#: As in nginx: the client went away before there was an answer.
CLIENT_GONE = 499
QUIET = frozenset({"/health/live", "/health/ready", "/health/startup", "/metrics"})


#: Where the deadline of a request's answer lies in its scope.
DEADLINE = "framekeeper.deadline"


def be_patient(scope: Scope) -> None:
    """Lift the deadline of this request's answer: its route has one of its own."""
    deadline: asyncio.Timeout | None = scope.get(DEADLINE)
    if deadline is not None and not deadline.expired():
        deadline.reschedule(None)


class Observe:
    """ASGI middleware around the whole application."""

    def __init__(self, app: ASGIApp, *, answer_seconds: float = ANSWER_SECONDS) -> None:
        self.app = app
        self.answer_seconds = answer_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begin = time.perf_counter()
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if REQUEST_ID.fullmatch(given) else f"req_{uuid4().hex}"
        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(request_id=request_id)
        # The status that counts when no answer begins.
        status = CLIENT_GONE

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["X-Request-ID"] = request_id
            await send(message)

        async def send_in_time(message: Message) -> None:
            # From here on a slow reader takes the time it needs.
            if message["type"] == "http.response.start" and not deadline.expired():
                deadline.reschedule(None)
            await send_with_id(message)

        metrics.IN_FLIGHT.inc()
        try:
            async with asyncio.timeout(self.answer_seconds) as deadline:
                scope[DEADLINE] = deadline
                await self.app(scope, receive, send_in_time)
        except ClientDisconnect:
            log.info("client went away")
        except Exception as error:
            if status != CLIENT_GONE:
                # The answer had begun: break it off, so that it is not taken for whole.
                log.exception("answer broken off")
                raise
            failure: FramekeeperError = FramekeeperError()
            if isinstance(error, TimeoutError) and deadline.expired():
                failure = DatabaseUnavailable(retry_after=5)
            log.exception("request failed")
            await answer(failure)(scope, receive, send_with_id)
        finally:
            metrics.IN_FLIGHT.dec()
            seconds = time.perf_counter() - begin
            route = getattr(scope.get("route"), "path", "unmatched")
            metrics.observe(route, scope["method"], status, seconds)
            # Probes and scrapes come every few seconds.
            write = log.debug if route in QUIET and status == HTTPStatus.OK else log.info
            write("request", method=scope["method"], route=route, status=status, seconds=round(seconds, 4))
