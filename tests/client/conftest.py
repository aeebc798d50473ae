"""A service with an engine whose steps take a moment, for the command line's client."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cluster import Cluster
from faulty import serving
from system import System


@pytest.fixture(scope="module")
def service(
    postgres_cluster: Cluster, postgres_template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[System]:
    """One supervisor, one gateway; jobs of ten steps last a second."""
    yield from serving(
        postgres_cluster, postgres_template, tmp_path_factory.mktemp("client"), step_seconds=0.1
    )
