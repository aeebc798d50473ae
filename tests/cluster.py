"""A PostgreSQL for tests, and fresh databases on it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psycopg

from framekeeper.database import embedded

_numbers = itertools.count(1)


class Cluster(NamedTuple):
    """A running PostgreSQL: its data directory, and the URL of its maintenance database."""

    directory: Path
    url: str

    def url_of(self, database: str) -> str:
        return embedded.database_url(self.directory, database)


def new_database(cluster: Cluster, template: str) -> Iterator[str]:
    name = f"test_{next(_numbers)}"
    with psycopg.connect(cluster.url, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}" STRATEGY FILE_COPY')
        yield cluster.url_of(name)
        connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')
