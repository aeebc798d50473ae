"""The wire between supervisor and worker: one socket pair, length-prefixed msgpack."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Generic, TypeVar

from framekeeper.engine.protocol import Message, encode

#: Longest message in bytes; a stack trace is the largest thing that is ever sent.
LIMIT = 4 * 1024 * 1024

Received = TypeVar("Received")


class Channel(Generic[Received]):
    """One end. `receive` gives None when the other end is gone; `send` then does nothing."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        decode: Callable[[bytes], Received],
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._decode = decode

    @classmethod
    async def over(cls, end: socket.socket, decode: Callable[[bytes], Received]) -> Channel[Received]:
        """Take over one end of a socket pair."""
        reader, writer = await asyncio.open_unix_connection(sock=end)
        return cls(reader, writer, decode)

    async def receive(self) -> Received | None:
        """The next message, or None at the end. Raises msgspec.ValidationError on an unknown message."""
        try:
            length = int.from_bytes(await self._reader.readexactly(4), "big")
            if length > LIMIT:
                return None
            return self._decode(await self._reader.readexactly(length))
        except (asyncio.IncompleteReadError, ConnectionError, OSError):
            return None

    def send(self, message: Message) -> None:
        """Queue a message; its order among the others is kept."""
        if self._writer.is_closing():
            return
        raw = encode(message)
        self._writer.write(len(raw).to_bytes(4, "big") + raw)

    async def drain(self) -> None:
        """Wait until what was sent has left this process."""
        try:
            await self._writer.drain()
        except (ConnectionError, OSError):
            return

    def close(self) -> None:
        """Close this end."""
        self._writer.close()
