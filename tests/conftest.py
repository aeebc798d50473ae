"""What all tests share: a real PostgreSQL, and a fresh, migrated database on it for each test."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest
from playwright.sync_api import Browser, expect, sync_playwright
from xdist.remote import Producer

from cluster import Cluster, new_database
from distribution import Distribution, needs_an_engine
from framekeeper.database import embedded


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In each process of `pytest -n`: what takes longest is first, so that none waits for it in the end."""
    if hasattr(config, "workerinput"):
        slow = {item.path for item in items if item.get_closest_marker("slow")}
        items.sort(key=lambda item: 0 if needs_an_engine(item.nodeid) else 1 if item.path in slow else 2)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Distribution:
    return Distribution(config, log)


@pytest.fixture(scope="session")
def postgres_cluster() -> Iterator[Cluster]:
    """One server for the whole run. It dies with pytest, even after kill -9."""
    # Not pytest's own temporary directory: that is 0700, and root's PostgreSQL runs as another account.
    home = Path(tempfile.mkdtemp(prefix="framekeeper-tests-"))
    home.chmod(0o711)
    directory = home / "postgres"
    try:
        with embedded.embedded_postgres(directory, throwaway=True):
            yield Cluster(directory, embedded.database_url(directory, "postgres"))
    finally:
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A fresh directory that every account can reach, as the server of root needs; tmp_path is 0700."""
    home = Path(tempfile.mkdtemp(prefix="framekeeper-tests-"))
    home.chmod(0o755)
    yield home
    shutil.rmtree(home, ignore_errors=True)


@pytest.fixture
def small_disk(open_directory: Path) -> Iterator[Path]:
    """A file system of 24 MB."""
    disk = open_directory / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", disk], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("needs the right to mount")
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


@pytest.fixture
def full_disk(small_disk: Path) -> Path:
    """A file system without a free byte."""
    with (small_disk / "ballast").open("wb", buffering=0) as ballast, suppress(OSError):
        while ballast.write(b"x" * 4096):
            pass
    return small_disk


@pytest.fixture(scope="session")
def postgres_template(postgres_cluster: Cluster) -> str:
    """The name of a migrated, empty database that others are copied from."""
    from framekeeper.database.migrate import migrate

    name = "framekeeper_template"
    with psycopg.connect(postgres_cluster.url, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
    migrate(postgres_cluster.url_of(name))
    return name


@pytest.fixture
def empty_postgres_url(postgres_cluster: Cluster) -> Iterator[str]:
    """URL of a fresh database without any schema."""
    yield from new_database(postgres_cluster, "template0")


@pytest.fixture
def postgres_url(postgres_cluster: Cluster, postgres_template: str) -> Iterator[str]:
    """URL of a fresh database with this version's schema."""
    yield from new_database(postgres_cluster, postgres_template)


# No wider: while it is open, its event loop counts as running in this thread, and nobody else can start one.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A real Chromium. Not skipped where there is none: a page that nobody looked at is not tested."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    assert chromium, "Chromium is missing: apt-get install chromium"
    expect.set_options(timeout=20_000)
    with sync_playwright() as playwright:
        # As root, and in a container, Chromium has no sandbox of its own.
        launched = playwright.chromium.launch(
            executable_path=chromium,
            args=["--no-sandbox", "--disable-dev-shm-usage", "--autoplay-policy=no-user-gesture-required"],
        )
        yield launched
        launched.close()
