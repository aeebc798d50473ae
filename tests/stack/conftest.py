"""The whole system with the real engine: vllm-omni on the CPU with the small checkpoint."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster import Cluster, new_database
from engine_runtime import engine_python
from system import System


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/stack" in str(item.path):
            item.add_marker(pytest.mark.stack)


@pytest.fixture(scope="session")
def tiny_model() -> Iterator[Path]:
    """The small Wan2.2 checkpoint, made by the product's own command."""
    with tempfile.TemporaryDirectory(prefix="framekeeper-model-") as directory:
        target = Path(directory) / "wan2.2-t2v-tiny"
        subprocess.run([engine_python(), "-m", "framekeeper.checkpoint.tiny", target], check=True)
        yield target


@pytest.fixture(scope="module")
def module_postgres_url(postgres_cluster: Cluster, postgres_template: str) -> Iterator[str]:
    """A fresh database that the tests of one module share."""
    yield from new_database(postgres_cluster, postgres_template)


@pytest.fixture(scope="module")
def system(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    module_postgres_url: str,
    tiny_model: Path,
) -> Iterator[System]:
    """One supervisor with a warm engine, and two gateways of two processes each, for the tests of a module.

    A module chooses its profile with PROFILE and the engine's Python with ENGINE, a function.
    """
    running = System(
        tmp_path_factory.mktemp("system"),
        module_postgres_url,
        profile=getattr(request.module, "PROFILE", "cpu-tiny"),
        model=tiny_model,
        engine_python=getattr(request.module, "ENGINE", engine_python)(),
        gateway_processes=2,
    )
    try:
        running.start_supervisor()
        running.urls = [running.start_gateway(), running.start_gateway()]
        running.wait_ready()
        yield running
        running.close()
    finally:
        running.abandon()
