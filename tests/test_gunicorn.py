import http.client
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

PROJECT = Path(__file__).parents[1]

pytestmark = pytest.mark.slow


def wait_for(condition: Callable[[], object], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.05)


class Gateway:
    """`framekeeper gateway` with two processes."""

    def __init__(self, var: Path, database_url: str, **environment: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self.metrics = var / "run" / f"prometheus-127.0.0.1-{self.port}"
        self.environment = {
            name: value for name, value in os.environ.items() if "FRAMEKEEPER" not in name
        } | {
            "FRAMEKEEPER_VAR": str(var),
            "FRAMEKEEPER_PORT": str(self.port),
            "FRAMEKEEPER_DATABASE_URL": database_url,
            "FRAMEKEEPER_LOG_FORMAT": "json",
            **environment,
        }
        self.log = var / "gateway.log"
        self.process = self.start()

    def start(self) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            command = [sys.executable, "-m", "framekeeper", "gateway"]
            return subprocess.Popen(command, env=self.environment, cwd=PROJECT, stdout=log, stderr=log)

    def get(self, path: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def answers(self) -> bool:
        try:
            return self.get("/health/live")[0] == 200
        except (OSError, http.client.HTTPException):
            return False

    def workers(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children()


@pytest.fixture
def gateway(tmp_path: Path, postgres_url: str) -> Iterator[Gateway]:
    gateway = Gateway(tmp_path, postgres_url)
    try:
        wait_for(lambda: gateway.answers() and len(gateway.workers()) == 2)
        yield gateway
    finally:
        gateway.process.kill()
        gateway.process.wait()
        if gateway.metrics.is_symlink():
            shutil.rmtree(gateway.metrics.readlink(), ignore_errors=True)


def test_metrics_count_over_all_processes_and_begin_anew_with_the_next_start(gateway: Gateway) -> None:
    def counted() -> float:
        lines = gateway.get("/metrics")[1].splitlines()
        wanted = 'framekeeper_http_requests_total{method="GET",route="/v1/videos",status="200"}'
        return next((float(line.split()[-1]) for line in lines if line.startswith(wanted)), 0.0)

    for _ in range(20):
        assert gateway.get("/v1/videos")[0] == 200
    assert [counted() for _ in range(6)] == [20.0] * 6  # whichever process answers
    gateway.process.send_signal(signal.SIGTERM)
    assert gateway.process.wait(30) == 0
    assert not gateway.metrics.is_symlink()
    gateway.process = gateway.start()
    wait_for(gateway.answers)
    assert counted() == 0.0


def test_a_killed_worker_is_replaced(gateway: Gateway) -> None:
    victim = gateway.workers()[0]
    victim.kill()
    wait_for(lambda: len(gateway.workers()) == 2 and victim not in gateway.workers())
    wait_for(gateway.answers)


def test_no_worker_survives_a_killed_master(gateway: Gateway) -> None:
    workers = gateway.workers()
    gateway.process.kill()
    gateway.process.wait()
    _, alive = psutil.wait_procs(workers, timeout=10)
    assert alive == []
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", gateway.port)) != 0


def test_a_port_in_use_is_one_line_and_exit_status_2(gateway: Gateway) -> None:
    command = [sys.executable, "-m", "framekeeper", "gateway"]
    second = subprocess.run(
        command, check=False, env=gateway.environment, cwd=PROJECT, capture_output=True, text=True
    )
    assert second.returncode == 2
    assert second.stderr.startswith(f"FRAMEKEEPER_PORT={gateway.port}: ")
    assert second.stderr.count("\n") == 1
    assert gateway.answers()


def test_every_line_of_the_log_is_json_and_no_socket_is_left_about(gateway: Gateway) -> None:
    gateway.get("/v1/videos")
    gateway.process.send_signal(signal.SIGTERM)
    assert gateway.process.wait(30) == 0
    lines = gateway.log.read_text().splitlines()
    assert lines
    assert all(line.startswith("{") and '"program": "gateway"' in line for line in lines)
    sockets = []
    for path in gateway.log.parent.rglob("*"):
        with suppress(OSError):
            sockets += [path] if path.is_socket() else []
    assert sockets == []


def test_a_full_disk_ends_no_worker(full_disk: Path, tmp_path: Path, postgres_url: str) -> None:
    gateway = Gateway(tmp_path, postgres_url, FRAMEKEEPER_VAR=str(full_disk / "var"))
    try:
        wait_for(lambda: gateway.answers() and len(gateway.workers()) == 2)
        workers = gateway.workers()
        for path in ["/v1/videos", "/v1/models", "/metrics", "/v1/engines", "/nothing"] * 4:
            gateway.get(path)
        time.sleep(1)
        assert gateway.workers() == workers
        assert "SIGBUS" not in gateway.log.read_text()
    finally:
        gateway.process.terminate()
        gateway.process.wait(30)


def test_what_a_killed_gateway_left_in_memory_goes_with_the_next_start(gateway: Gateway) -> None:
    left = gateway.metrics.readlink()
    gateway.process.kill()
    gateway.process.wait()
    assert left.is_dir()
    gateway.process = gateway.start()
    wait_for(gateway.answers)
    assert not left.exists()
    last = gateway.metrics.readlink()
    gateway.process.terminate()
    assert gateway.process.wait(30) == 0
    assert not last.exists()
