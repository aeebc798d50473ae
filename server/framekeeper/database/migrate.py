"""Bringing a database to this version's schema, from any earlier one, with its jobs kept."""

from __future__ import annotations

import time
from pathlib import Path

import psycopg
from alembic import command
from alembic.config import Config
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

#: Held while migrating, so that programs which start together wait for one another. PostgreSQL frees it with
#: the connection: a program killed in the middle leaves nothing locked.
LOCK = 0x6672616D65  # "frame"


def migrate(url: str, revision: str = "head", *, wait_seconds: float = 0.0) -> None:
    """Run the migrations that the database lacks; each is one transaction.

    `wait_seconds` is how long to wait for a database that does not answer yet; after that
    psycopg.OperationalError is raised.
    """
    _wait_until_it_answers(url, wait_seconds)
    # psycopg connects by itself: libpq's URLs (sockets, several hosts) are more than SQLAlchemy's.
    engine = create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(url), poolclass=NullPool)
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    with engine.connect() as connection:
        connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": LOCK})
        connection.commit()
        try:
            config.attributes["connection"] = connection
            command.upgrade(config, revision)
        finally:
            connection.execute(text("SELECT pg_advisory_unlock(:key)"), {"key": LOCK})
            connection.commit()
    engine.dispose()


def _wait_until_it_answers(url: str, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            psycopg.connect(url, connect_timeout=5).close()
            return
        except psycopg.OperationalError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(0.5)
