"""Every refusal and every failure as an answer in OpenAI's error shape."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from http import HTTPStatus

import procrastinate.exceptions
import psycopg
import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.routing import Match, Route

from framekeeper.database.pool import UNAVAILABLE
from framekeeper.errors import DatabaseUnavailable, FramekeeperError, InvalidRequest
from framekeeper.gateway import metrics
from framekeeper.jobs.fields import SHOWN, shown

log = structlog.get_logger(__name__)

#: The official client repeats a request by itself on 409 and 5xx. These will answer the same a second later.
POINTLESS_TO_REPEAT = frozenset({HTTPStatus.CONFLICT, HTTPStatus.INSUFFICIENT_STORAGE})


class RangeNotSatisfiable(FramekeeperError):
    """The requested range lies outside the file."""

    status = 416
    code = "range_not_satisfiable"
    type = "invalid_request_error"
    advice = "Ask for a range within the file's size."

    def __init__(self, size: int) -> None:
        self.size = size
        super().__init__(f"The requested range lies outside the file, which has {size} bytes.")


def answer(error: FramekeeperError, headers: Mapping[str, str] | None = None) -> Response:
    """The answer for one of our errors."""
    return error_response(
        error.status, error.message, type=error.type, code=error.code, param=error.param,
        headers={**_headers(error), **(headers or {})},
    )  # fmt: skip


def error_response(
    status: int,
    message: str,
    *,
    type: str,
    code: str,
    param: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """An answer in OpenAI's error shape."""
    # `param` may be any text that a client used as a field's name.
    body = {"error": {"message": message, "type": type, "param": param and param[:SHOWN], "code": code}}
    content = json.dumps(body, ensure_ascii=True).encode("ascii")
    return Response(content, int(status), dict(headers or {}), media_type="application/json")


def translated(error: Exception) -> FramekeeperError | None:
    """What a library's exception means to a client; None when it means a mistake of ours."""
    if isinstance(error, FramekeeperError):
        return error
    if isinstance(error, procrastinate.exceptions.ConnectorException) and isinstance(
        error.__cause__, Exception
    ):
        # The queue wraps what the same connection would have raised.
        return translated(error.__cause__)
    if isinstance(error, psycopg.errors.UndefinedTable | psycopg.errors.UndefinedColumn):
        return DatabaseUnavailable(
            "The database is older than this gateway: the schema is brought up to date when a supervisor or "
            "`framekeeper run` starts.",
            retry_after=5,
        )
    if isinstance(error, UNAVAILABLE):
        return DatabaseUnavailable(retry_after=2)
    return None


def install(app: FastAPI) -> None:
    """Register the handlers. Unforeseen exceptions are answered by the middleware (observe.py)."""
    for kind in (FramekeeperError, procrastinate.exceptions.ConnectorException, psycopg.Error):
        app.add_exception_handler(kind, _on_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(RequestValidationError, _on_validation_error)


def _headers(error: FramekeeperError) -> dict[str, str]:
    headers = {}
    if error.retry_after is not None:
        headers["Retry-After"] = str(math.ceil(error.retry_after))
        # What OpenAI's clients read first (https://github.com/openai/openai-python, _base_client.py).
        headers["Retry-After-Ms"] = str(math.ceil(error.retry_after * 1000))
    if error.status in POINTLESS_TO_REPEAT:
        headers["X-Should-Retry"] = "false"
    if error.status == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"
    if isinstance(error, RangeNotSatisfiable):
        headers["Content-Range"] = f"bytes */{error.size}"
    return headers


async def _on_error(request: Request, error: Exception) -> Response:
    known = translated(error)
    if known is None:
        raise error
    _count(request, known)
    if known.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        log.warning("refused", code=known.code, reason=known.message, cause=str(error.__cause__ or error))
    return answer(known)


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    status = HTTPStatus(error.status_code)
    path = shown(request.url.path)
    words = {HTTPStatus.NOT_FOUND: f"There is nothing at {path}: see GET /docs."}
    kind = "server_error" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"
    headers = dict(error.headers or {})
    if status is HTTPStatus.METHOD_NOT_ALLOWED:
        methods = _methods(request)
        headers["Allow"] = ", ".join(methods)
        words[status] = f"{path} does not take {shown(request.method)}: use {' or '.join(methods)}."
    return error_response(
        status, words.get(status, f"{status.phrase}."), type=kind, code=status.name.lower(), headers=headers
    )


def _methods(request: Request) -> list[str]:
    """All methods of this path; the router itself names those of the first route that it finds."""
    matching: dict[str, set[str]] = {}
    waiting = list(request.app.routes)
    while waiting:
        route = waiting.pop()
        waiting += getattr(getattr(route, "original_router", None), "routes", [])
        if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE:
            matching.setdefault(route.path, set()).update(route.methods or ())
    # A path that is written out hides those with a parameter in its place.
    plain = [methods for path, methods in matching.items() if "{" not in path]
    return sorted(set().union(*(plain or matching.values())))


async def _on_validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    faults = [
        (str(fault["loc"][-1]), f"{fault['loc'][-1]}={shown(fault.get('input'))}: {fault['msg']}.")
        for fault in error.errors()
    ]
    invalid = InvalidRequest(" ".join(message for _, message in faults), param=faults[0][0])
    _count(request, invalid)
    return answer(invalid)


def _count(request: Request, error: FramekeeperError) -> None:
    metrics.refused(getattr(request.scope.get("route"), "path", ""), request.method, error.code)
