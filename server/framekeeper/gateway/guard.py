"""Requests that reach no route: from pages of other origins, under a stranger's name, at the wrong port."""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from framekeeper.errors import CrossOrigin, HostNotAllowed
from framekeeper.gateway.errors import answer, error_response
from framekeeper.gateway.reach import Names
from framekeeper.jobs.fields import shown

HARMLESS = frozenset({"GET", "HEAD", "OPTIONS"})
#: Served on the operation port alone, where there is one. Liveness, which tells nothing, is served on both.
OPERATION = frozenset({"/metrics", "/health/ready", "/health/startup"})
LIVENESS = "/health/live"


class Guard:
    """ASGI middleware. `operation_port` 0 means that there is none of its own."""

    def __init__(self, app: ASGIApp, *, names: Names, operation_port: int = 0) -> None:
        self.app = app
        self.names = names
        self.operation_port = operation_port

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
        elif not self._at_its_port(scope):
            nowhere = error_response(
                404, "There is nothing here at this port.", type="invalid_request_error", code="not_found"
            )
            await nowhere(scope, receive, send)
        elif not self.names.include(host := Headers(scope=scope).get("host")):
            message = (
                f"This service asks for no key, and answers to local names only, not to {shown(host)}: set "
                "FRAMEKEEPER_ALLOWED_HOSTS to the names under which it is reached, or FRAMEKEEPER_AUTH=on."
            )
            await answer(HostNotAllowed(message))(scope, receive, send)
        elif scope["method"] not in HARMLESS and _from_elsewhere(Headers(scope=scope)):
            await answer(CrossOrigin())(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    def _at_its_port(self, scope: Scope) -> bool:
        if not self.operation_port or scope["path"] == LIVENESS:
            return True
        _, port = scope.get("server") or ("", None)
        here = port == self.operation_port
        return here == (scope["path"] in OPERATION)


def _from_elsewhere(headers: Headers) -> bool:
    """Whether a browser says that a page of another origin sent this; programs say nothing.

    A form or a script of any page may send a body to any address without asking first, a loopback one too.
    """
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site not in ("same-origin", "none")
    origin = headers.get("origin")
    if origin is None:
        return False
    try:
        return urlsplit(origin).netloc != headers.get("host", "")
    except ValueError:  # such as http://[bad, which no page of this service has
        return True
