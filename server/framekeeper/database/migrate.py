"""Bringing a database to this version's schema, from any earlier one, with its jobs kept."""

from __future__ import annotations

import time
from pathlib import Path

import psycopg
from alembic import command
from alembic.config import Config
from alembic.util import CommandError
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

#: Held while migrating, so that programs which start together wait for one another. PostgreSQL frees it with
#: the connection: a program killed in the middle leaves nothing locked.
LOCK = 0x6672616D65  # "frame"


class SchemaError(Exception):
    """The database cannot be brought to this version's schema; the message is one line that goes on after
    the database's name."""


def migrate(url: str, revision: str = "head", *, wait_seconds: float = 0.0) -> None:
    """Run the migrations that the database lacks; each is one transaction.

    `wait_seconds` is how long to wait for a database that does not answer yet; after that, and when it goes
    away meanwhile, psycopg.OperationalError is raised. Raises SchemaError when waiting would not help.
    """
    _wait_until_it_answers(url, wait_seconds)
    # psycopg connects by itself: libpq's URLs (sockets, several hosts) are more than SQLAlchemy's.
    engine = create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(url), poolclass=NullPool)
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    try:
        # Closing the connection gives the lock back, also of one whose transaction failed.
        with engine.connect() as connection:
            connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": LOCK})
            connection.commit()
            config.attributes["connection"] = connection
            command.upgrade(config, revision)
    except CommandError as error:
        raise SchemaError(
            f"its schema is of another version of Framekeeper ({error}): run that version or a newer one, or "
            f"use another database"
        ) from error
    except DBAPIError as error:
        if isinstance(error.orig, psycopg.OperationalError | psycopg.InterfaceError):
            raise psycopg.OperationalError(str(error.orig)) from error  # it went away meanwhile
        reason = str(error.orig).strip().splitlines()[0]
        raise SchemaError(
            f"its schema cannot be brought to this version ({reason}): let the account of the URL create and "
            f"change tables there"
        ) from error
    finally:
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
