"""A gateway behind a real socket, in a thread of the test's process."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from framekeeper.gateway.app import create_app
from framekeeper.settings import Settings


@contextmanager
def served(settings: Settings) -> Iterator[str]:
    """Serve one application; yields its base URL."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        # asyncio sets this itself only on sockets that it made; without it each answer takes 40 ms.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        server = uvicorn.Server(
            uvicorn.Config(create_app(settings), log_level="warning", lifespan="on", access_log=False)
        )
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        while not server.started:
            assert thread.is_alive(), "the gateway did not start"
            time.sleep(0.005)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(20)
