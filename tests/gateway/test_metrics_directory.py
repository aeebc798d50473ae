"""Metrics of workers that come and go."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import httpx
import psutil
import pytest

from framekeeper.gateway import metrics_directory
from system import System, wait_for

pytestmark = pytest.mark.slow

#: One process of a gateway: it answers as many requests as it is told, and ends.
WORKER = """
import sys
from framekeeper.gateway import metrics
for number in range(int(sys.argv[1])):
    metrics.observe("/v1/videos", "GET", 200, 0.003 * (number + 1))
    metrics.ACCEPTED.labels("tiny").inc(0.5)
"""
READ = "import sys; from framekeeper.gateway import metrics; sys.stdout.buffer.write(metrics.exposition())"


def python(directory: Path, code: str, *arguments: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(directory)},
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip


def shown(directory: Path) -> list[str]:
    return sorted(python(directory, READ).splitlines())


def test_sums_of_ended_processes_are_what_their_files_said(tmp_path: Path) -> None:
    for requests in (3, 5):
        python(tmp_path, WORKER, str(requests))
    before = shown(tmp_path)
    assert 'framekeeper_http_requests_total{method="GET",route="/v1/videos",status="200"} 8.0' in before
    assert len(list(tmp_path.glob("*_*.db"))) >= 4
    assert metrics_directory.retire(tmp_path, ())
    assert shown(tmp_path) == before
    assert {file.name for file in tmp_path.glob("[ch]*.db")} == {"counter_ended.db", "histogram_ended.db"}
    # Another one ends later, and one goes on.
    python(tmp_path, WORKER, "2")
    (other,) = tmp_path.glob("counter_[0-9]*.db")
    both = shown(tmp_path)
    assert 'framekeeper_videos_accepted_total{model="tiny"} 5.0' in both
    assert metrics_directory.retire(tmp_path, {int(other.stem.partition("_")[2])})
    assert other.exists()
    assert metrics_directory.retire(tmp_path, ())
    assert shown(tmp_path) == both
    assert not other.exists()


def test_files_stay_while_a_scrape_reads_them(tmp_path: Path) -> None:
    python(tmp_path, WORKER, "1")
    files = {file.name for file in tmp_path.glob("*.db")}
    with metrics_directory.read(tmp_path):
        assert not metrics_directory.retire(tmp_path, ())
        assert {file.name for file in tmp_path.glob("*.db")} == files
    with (tmp_path / "lock").open("rb") as free:
        fcntl.flock(free, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_gateway_whose_workers_die_keeps_its_counters_and_few_files(
    tmp_path: Path, postgres_url: str
) -> None:
    system = System(tmp_path, postgres_url)
    try:
        url = system.start_gateway()
        master = next(each for each in psutil.Process().children() if "gunicorn" in " ".join(each.cmdline()))
        (link,) = system.run_directory.glob("prometheus-*")
        for count in range(1, 4):
            for _ in range(5):
                httpx.get(f"{url}/v1/videos/nothing")
            before = {each.pid for each in master.children()}
            for each in master.children():
                each.kill()
            wait_for("new workers", partial(_renewed, master, before), 20)
            wait_for("an answer", lambda: _answers(url), 20)
            text = httpx.get(f"{url}/metrics").text
            found = re.search(
                r'http_requests_total\{method="GET",route="/v1/videos/\{video_id\}",status="404"\} (\d+)',
                text,
            )
            assert found is not None
            assert int(found[1]) == 5 * count
            # Two workers and the sums; the second of two that end together may wait for the next end.
            assert len(list(link.glob("counter_*.db"))) <= 3
        system.close()
    finally:
        system.abandon()


def _renewed(master: psutil.Process, gone: set[int]) -> bool:
    return len({each.pid for each in master.children()} - gone) == 2


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health/live").status_code == 200
    except httpx.HTTPError:
        return False
