"""A PostgreSQL that a test stops and starts."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil

from framekeeper.database import embedded


class Server:
    """A PostgreSQL of this test's own, which can be stopped and started."""

    def __init__(self, home: Path) -> None:
        self.directory = home / "postgres"
        self.url = embedded.database_url(self.directory)
        self._running = ExitStack()

    def start(self) -> None:
        self._running.enter_context(embedded.embedded_postgres(self.directory, throwaway=True))

    def stop(self) -> None:
        # A throwaway server is stopped at once and forgets its last commits; this one is to keep them.
        embedded.stop(self.directory)
        self._running.close()

    def processes(self) -> list[psutil.Process]:
        server = embedded.running_server(self.directory)
        assert server is not None
        return [server, *server.children(recursive=True)]


@contextmanager
def own_postgres() -> Iterator[Server]:
    """A server that does not run yet; all of it is gone in the end."""
    home = Path(tempfile.mkdtemp(prefix="framekeeper-tests-"))
    home.chmod(0o711)
    server = Server(home)
    try:
        yield server
    finally:
        server.stop()
        shutil.rmtree(home, ignore_errors=True)
