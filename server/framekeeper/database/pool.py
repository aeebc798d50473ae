"""The connection pool that gateway and supervisor use, with the queue on top of it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import procrastinate
import psycopg
from psycopg.rows import DictRow, dict_row
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from framekeeper.errors import DatabaseUnavailable

#: What psycopg raises when the server is away, restarting, or the link broke; or only reads, as one does that
#: was the primary until a moment ago, or a copy that a URL names by mistake
#: (https://www.postgresql.org/docs/current/hot-standby.html).
UNAVAILABLE = (
    psycopg.OperationalError,
    PoolTimeout,
    psycopg.InterfaceError,
    psycopg.errors.ReadOnlySqlTransaction,
)


class Connection(psycopg.AsyncConnection[DictRow]):
    """One that knows when it came back from its last use."""

    back_at = float("-inf")


async def _commit_by_itself(connection: Connection) -> None:
    """A single statement is a transaction of its own then, in one round trip instead of three."""
    await connection.set_autocommit(True)


async def _came_back(connection: Connection) -> None:
    connection.back_at = time.monotonic()


async def _check(connection: Connection) -> None:
    """Raise OperationalError for a connection that is broken or may only read; the pool then makes another.

    One to a former primary stays open and read-only for ever, behind a proxy also when there is a new one.
    """
    cursor = await connection.execute("SELECT current_setting('transaction_read_only') AS read_only")
    row = await cursor.fetchone()
    if row is None or row["read_only"] != "off":
        await connection.close()
        raise psycopg.OperationalError("the database only reads")


class Database:
    """A pool of connections and the procrastinate app that shares it.

    A connection is asked whether it lives before each use, except within `fresh_seconds` after its last one:
    that saves a round trip, and a statement may fail right after the server was restarted.
    """

    def __init__(
        self,
        url: str,
        *,
        size: int = 8,
        wait_seconds: float = 5.0,
        fresh_seconds: float = 0.0,
        name: str = "framekeeper",
    ) -> None:
        self.url = url

        async def check(connection: Connection) -> None:
            if time.monotonic() - connection.back_at >= fresh_seconds:
                await _check(connection)

        self.pool: AsyncConnectionPool[Connection] = AsyncConnectionPool(
            url,
            min_size=1,
            max_size=size,
            timeout=wait_seconds,
            open=False,
            connection_class=Connection,
            kwargs={"row_factory": dict_row, "application_name": name, "connect_timeout": 5},
            configure=_commit_by_itself,
            check=check,
            reset=_came_back,
            # The pool doubles its pauses between attempts for so long, then rests until somebody asks again:
            # a longer time would let it sleep for hours after a database that was away for hours.
            reconnect_timeout=8,
        )
        self.queue = procrastinate.App(connector=procrastinate.PsycopgConnector())

    async def open(self) -> None:
        """Open the pool without waiting: a database that is away now may come back."""
        await self.pool.open(wait=False)
        await self.queue.open_async(self.pool)

    async def close(self) -> None:
        """Close all connections."""
        await self.pool.close()

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """One connection on which each statement is a transaction of its own. Raises DatabaseUnavailable."""
        try:
            async with self.pool.connection() as connection:
                try:
                    yield connection
                except psycopg.errors.ReadOnlySqlTransaction:
                    await connection.close()  # so that the pool makes another
                    raise
        except UNAVAILABLE as error:
            raise DatabaseUnavailable(retry_after=2) from error

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """One connection in one transaction. Raises DatabaseUnavailable when the database does not answer.

        Statements are sent together until a result is fetched, when their errors are raised.
        """
        async with self.connection() as connection, connection.pipeline(), connection.transaction():
            yield connection

    async def execute(self, query: str, parameters: dict[str, Any] | None = None) -> None:
        """Run one statement in its own transaction."""
        async with self.connection() as connection:
            await connection.execute(query, parameters)

    async def fetch_one(self, query: str, parameters: dict[str, Any] | None = None) -> DictRow | None:
        """Run one statement in its own transaction and return its first row."""
        async with self.connection() as connection:
            cursor = await connection.execute(query, parameters)
            return await cursor.fetchone()

    async def fetch_all(self, query: str, parameters: dict[str, Any] | None = None) -> list[DictRow]:
        """Run one statement in its own transaction and return its rows."""
        async with self.connection() as connection:
            cursor = await connection.execute(query, parameters)
            return await cursor.fetchall()

    async def fetch_each(self, queries: Sequence[str]) -> list[list[DictRow]]:
        """Run some statements that only read, in one round trip; the rows of each."""
        async with self.connection() as connection, connection.pipeline():
            cursors = [await connection.execute(query) for query in queries]
            return [await cursor.fetchall() for cursor in cursors]
