"""A service with an engine whose steps take a moment, for the command line's client."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cluster import Cluster, new_database
from faulty import begin
from system import System


@pytest.fixture(scope="module")
def service(
    postgres_cluster: Cluster, postgres_template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[System]:
    """One supervisor, one gateway; jobs of ten steps last a second."""
    for url in new_database(postgres_cluster, postgres_template):
        system = begin(tmp_path_factory.mktemp("client"), url, [], script={"step_seconds": 0.1})
        try:
            system.urls = [system.start_gateway()]
            yield system
            system.close()
        finally:
            system.abandon()
