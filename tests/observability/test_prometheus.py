"""A real Prometheus scrapes a real run, and every query of the dashboard has something to show."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from faulty import final, submitted
from system import PROJECT, System, fault_profile, free_port, wait_for

PROMETHEUS = PROJECT / "configs" / "prometheus"
DASHBOARD = PROJECT / "configs" / "grafana" / "dashboards" / "framekeeper.json"
#: As Grafana would fill it in for these scrapes.
RATE_INTERVAL = "20s"
#: The cards of a machine that has none: what nvidia-smi said on an H200.
NVIDIA_SMI = """#!/bin/sh
card=GPU-f18f42dc-7d06-12ad-1a65-114100ce94c0
case "$1" in
    *driver_version*) echo "$card, NVIDIA H200, 9.0, 143771, 580.159.04" ;;
    --query-gpu*) echo "$card, 143771, 4623" ;;
    *) echo "$card, 431, python3, 4614" ;;
esac
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (shutil.which("prometheus") and shutil.which("promtool")),
        reason="needs Prometheus; `make test-observability` installs it",
    ),
]


class Scraper:
    """A Prometheus with the shipped configuration, but for the addresses and a second between scrapes."""

    def __init__(self, directory: Path, targets: dict[str, str]) -> None:
        configuration = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text(encoding="utf-8"))
        configuration["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        for job in configuration["scrape_configs"]:
            job["static_configs"] = [{"targets": [targets[job["job_name"]]]}]
        directory.mkdir()
        shutil.copy(PROMETHEUS / "alerts.yml", directory)
        (directory / "prometheus.yml").write_text(yaml.safe_dump(configuration), encoding="utf-8")
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        with (directory / "log").open("wb") as log:
            self.process = subprocess.Popen(
                [
                    "prometheus",
                    f"--config.file={directory / 'prometheus.yml'}",
                    f"--storage.tsdb.path={directory / 'data'}",
                    f"--web.listen-address=127.0.0.1:{port}",
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        wait_for("Prometheus is ready", self._ready, 30)

    def _ready(self) -> bool:
        assert self.process.poll() is None
        with suppress(httpx.HTTPError):
            return httpx.get(f"{self.url}/-/ready").status_code == 200
        return False

    def ask(self, query: str) -> list[float]:
        """The values of an instant query. Fails when Prometheus does not understand it."""
        query = query.replace("$__rate_interval", RATE_INTERVAL)
        answer = httpx.get(f"{self.url}/api/v1/query", params={"query": query}).json()
        assert answer["status"] == "success", f"{query}: {answer}"
        return [float(each["value"][1]) for each in answer["data"]["result"]]

    def shows(self, query: str) -> bool:
        return any(not math.isnan(value) for value in self.ask(query))


@pytest.fixture
def system(postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[System]:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "nvidia-smi").write_text(NVIDIA_SMI)
    (tmp_path / "bin" / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    profile = fault_profile(
        tmp_path / "profiles", [], step_seconds=0.05, facts={"compiled_modules": [40, 40]}
    )
    system = System(
        tmp_path / "system", postgres_url, profile=profile, engine_python=sys.executable, min_free_bytes=0,
        log_format="json",
    )  # fmt: skip
    system.start_supervisor()
    system.urls.append(system.start_gateway(gateway_processes=2))
    system.wait_ready(60)
    yield system
    try:
        system.close()
    finally:
        system.abandon()


@pytest.fixture
def prometheus(system: System, tmp_path: Path) -> Iterator[Scraper]:
    scraper = Scraper(
        tmp_path / "prometheus",
        {
            "framekeeper-gateway": system.urls[0].removeprefix("http://"),
            "framekeeper-supervisor": f"127.0.0.1:{system.supervisor_port}",
        },
    )
    yield scraper
    scraper.process.send_signal(signal.SIGTERM)
    scraper.process.wait(30)


def queries() -> list[tuple[str, str]]:
    panels = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    return [(panel["title"], target["expr"]) for panel in panels for target in panel.get("targets", ())]


def post(system: System, **fields: Any) -> httpx.Response:
    return httpx.post(f"{system.urls[0]}/v1/videos", json=fields, headers={"X-Request-ID": "req-of-a-test"})


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines() if line.startswith("{")]


def test_every_query_of_the_dashboard_has_data_after_a_run_with_an_incident(
    system: System, prometheus: Scraper
) -> None:
    assert len(queries()) > 35
    assert final(system, post(system, prompt="a cat").json()["id"]).state == "completed"
    os.kill(system.worker_pid(), signal.SIGKILL)
    wait_for("the engine is ready again", lambda: system.engine()["restarts"] == 1, 30)
    system.wait_ready(30)
    assert post(system, prompt="").status_code == 400

    def missing() -> list[tuple[str, str]]:
        # Steps that are made now: a rate over a quiet time has no percentile.
        final(system, post(system, prompt="a cat").json()["id"])
        return [(title, query) for title, query in queries() if not prometheus.shows(query)]

    last: list[list[tuple[str, str]]] = []
    try:
        wait_for("every query has data", lambda: not (last.append(missing()) or last[-1]), 60, every=1)
    except AssertionError:
        assert last[-1] == []
    killed = "sum(framekeeper_incidents_total{signature='killed_from_outside'})"
    assert prometheus.ask(killed) == [1]
    assert prometheus.ask("framekeeper_admission_refused_total{reason='invalid_request'}") == [1]
    assert prometheus.ask("framekeeper_device_memory_used_bytes{by='others'} > 4e9")
    # The stand-in compiles nothing.
    assert prometheus.ask("framekeeper_engine_compile_cache_files{origin='made'}") == [0]
    check_rules(prometheus)
    check_with_promtool(system)


def check_rules(prometheus: Scraper) -> None:
    groups = httpx.get(f"{prometheus.url}/api/v1/rules").json()["data"]["groups"]
    loaded = [rule for group in groups for rule in group["rules"]]
    assert len(loaded) == 18
    unhealthy = [(rule["name"], rule.get("lastError")) for rule in loaded if rule["health"] == "err"]
    assert unhealthy == []
    urgent = [r["name"] for r in loaded if r["state"] == "firing" and r["labels"]["severity"] == "critical"]
    assert urgent == []


def check_with_promtool(system: System) -> None:
    for url in (system.urls[0], f"http://127.0.0.1:{system.supervisor_port}"):
        text = httpx.get(f"{url}/metrics").text
        done = subprocess.run(
            ["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout + done.stderr) == (0, "")
        assert not re.findall(r"^(framekeeper_\w+_created)", text, re.MULTILINE)


def test_a_queue_that_no_engine_empties_grows_and_ages_in_the_metrics(
    system: System, prometheus: Scraper
) -> None:
    system.stop_supervisor()
    for _ in range(3):
        submitted(system)
    # The next one starts with the queue as it is; its engine needs its time to load.
    system.start_supervisor()
    most = "sum(max_over_time(framekeeper_queue_depth[1m]))"
    wait_for("three have waited", lambda: max(prometheus.ask(most), default=0) == 3, 30)
    wait_for("all are made", lambda: prometheus.ask("sum(framekeeper_queue_depth)") == [0], 30)
    assert prometheus.ask("sum(framekeeper_videos_finished_total{state='completed'})") == [3]


def test_one_request_is_followed_through_the_logs_of_both_programs(system: System) -> None:
    video_id = post(system, prompt="a cat").json()["id"]
    assert final(system, video_id).state == "completed"
    (port,) = system.gateways
    gateway = [
        line
        for line in lines_of(system.directory / f"gateway-{port}.log")
        if line.get("request_id") == "req-of-a-test"
    ]
    assert [line["video_id"] for line in gateway if line.get("event") == "request"] == [video_id]
    about = [
        line for line in lines_of(system.directory / "supervisor.log") if line.get("video_id") == video_id
    ]
    assert {"job started", "job settled"} <= {line["event"] for line in about}
    for line in about:
        assert (line["engine"], line["attempt"], line["request_id"]) == ("test-host/0", 1, "req-of-a-test")


def test_every_line_about_an_engine_names_it(system: System) -> None:
    os.kill(system.worker_pid(), signal.SIGKILL)
    wait_for("the engine is ready again", lambda: system.engine()["restarts"] == 1, 30)
    system.wait_ready(30)
    lines = [
        line
        for line in lines_of(system.directory / "supervisor.log")
        if line["event"] in ("engine ready", "engine ended")
    ]
    assert len(lines) == 3
    assert {line["engine"] for line in lines} == {"test-host/0"}
