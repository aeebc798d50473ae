"""Waiting for a worker that may be silent for so long: only time in which this process ran counts."""

from __future__ import annotations

import asyncio
import time
from typing import TypeVar

Received = TypeVar("Received")

#: A wait is made of pieces, so that a pause of ours costs one of them and not the whole of it.
PIECE_SECONDS = 1.0
#: A timer that rings so late was held up: this process was stopped, or its machine or container was.
LATE_SECONDS = 0.5


class Patience:
    """`paused_seconds` is how long this process did not run while it waited: no deadline counts them."""

    def __init__(self) -> None:
        self.paused_seconds = 0.0

    async def message(self, box: asyncio.Queue[Received], seconds: float) -> Received:
        """The next message. Raises TimeoutError when there was none for so many seconds.

        After a pause there is at least one more piece of waiting: asyncio rings its timers before what waits
        in the sockets is handed out, and a worker that was stopped with us has to get going first.
        """
        left = max(0.01, seconds)
        while True:
            piece = min(left, PIECE_SECONDS)
            begun = time.monotonic()
            try:
                return await asyncio.wait_for(box.get(), piece)
            except TimeoutError:
                left -= piece
                late = time.monotonic() - begun - piece
                if late >= LATE_SECONDS:
                    self.paused_seconds += late
                    left = max(left, PIECE_SECONDS)
                elif left <= 0:
                    raise
