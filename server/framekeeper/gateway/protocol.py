"""HTTP/1.1 as uvicorn speaks it, with an end to a client's patience: headers that never end.

uvicorn bounds the time between two requests, and h11 the size of headers (64 KiB), but a client that opens a
connection and sends its headers a byte a minute, or never, would hold it for ever
(https://github.com/encode/uvicorn/discussions/2159). The time of a body is bounded in body.py.
"""

from __future__ import annotations

import asyncio
from typing import ClassVar

from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn_worker import UvicornWorker

#: From a connection's first moment, or a request's first byte, until its headers are whole.
HEADER_SECONDS = 15.0


class BoundedProtocol(H11Protocol):
    """Closes a connection whose request does not get going."""

    header_seconds: ClassVar[float] = HEADER_SECONDS
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """The time of the first request's headers begins with the connection."""
        super().connection_made(transport)
        self._begin()

    def data_received(self, data: bytes) -> None:
        """That of a later one's with its first byte."""
        if self._timer is None and self._idle:
            self._begin()
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before:
            self._end()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is left to wait for."""
        self._end()
        super().connection_lost(exc)

    @property
    def _idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _begin(self) -> None:
        self._timer = self.loop.call_later(self.header_seconds, self._too_slow)

    def _end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_slow(self) -> None:
        self._timer = None
        if self._idle and not self.transport.is_closing():
            self.transport.close()


class Worker(UvicornWorker):  # type: ignore[misc]  # it has no types
    """gunicorn's worker with this protocol, and without a header that names the server."""

    CONFIG_KWARGS: ClassVar[dict[str, object]] = {
        "loop": "auto",
        "http": BoundedProtocol,
        "ws": "none",
        "server_header": False,
    }
