"""A real Chromium (Debian's) before a real service."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from cluster import Cluster
from faulty import serving
from remembered import REMEMBER
from system import System


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A fresh page. No script of it may fail, and nothing of it may be refused by its own policy."""
    context = browser.new_context(viewport={"width": 1280, "height": 860}, locale="en-GB")
    opened = context.new_page()
    opened.set_default_timeout(20_000)
    opened.add_init_script(REMEMBER)
    faults: list[str] = []
    opened.on("pageerror", lambda error: faults.append(str(error)))
    opened.on(
        "console", lambda line: faults.append(line.text) if "Content Security Policy" in line.text else None
    )
    yield opened
    context.close()
    assert faults == []


@pytest.fixture(scope="module")
def service(
    postgres_cluster: Cluster, postgres_template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[System]:
    """One supervisor with the fault backend, one gateway; jobs of six steps last a second."""
    # The page looks at the engines every 2 s: one that was back sooner would never be seen away.
    yield from serving(
        postgres_cluster,
        postgres_template,
        tmp_path_factory.mktemp("page"),
        step_seconds=0.15,
        load_seconds=3,
    )


@pytest.fixture(scope="session")
def shots() -> Path:
    """Where the pictures go that a person looks at."""
    directory = Path(__file__).resolve().parents[2] / "build" / "page"
    directory.mkdir(parents=True, exist_ok=True)
    return directory
