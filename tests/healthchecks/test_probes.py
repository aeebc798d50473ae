"""The probes as compose and Kubernetes run them: a bare interpreter, an exit status, one line."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

PROBES = Path(__file__).parents[2] / "healthchecks"
ANSWERS = {
    "/health/live": (200, b'{"status": "alive"}'),
    "/health/ready": (
        503,
        b'{"status": "not ready", "reasons": ["host/0 is loading.", "host/1 is\\nfailed."]}',
    ),
    "/health/startup": (502, b"<html>proxy</html>"),
}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = ANSWERS[self.path]
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def probe(name: str, *arguments: str, **environment: str) -> tuple[int, str]:
    kept = {key: value for key, value in os.environ.items() if key != "FRAMEKEEPER_HEALTH_URL"}
    done = subprocess.run(
        # -S: without installed packages.
        [sys.executable, "-S", PROBES / f"{name}.py", *arguments],
        env={**kept, **environment}, capture_output=True, text=True, timeout=20, check=False,
    )  # fmt: skip
    assert done.stderr == ""
    assert done.stdout.count("\n") == 1
    return done.returncode, done.stdout


def test_good_answer_is_exit_0(url: str) -> None:
    status, line = probe("live", url)
    assert status == 0
    assert line.startswith(f"{url}/health/live: 200 alive (")


def test_refusal_is_exit_1_with_its_reasons_on_one_line(url: str) -> None:
    status, line = probe("ready", url + "/")
    assert status == 1
    assert "503 host/0 is loading. host/1 is failed." in line


def test_foreign_answer_is_exit_1(url: str) -> None:
    status, line = probe("startup", url)
    assert status == 1
    assert "502, which is not an answer of Framekeeper" in line


def test_url_may_come_from_the_environment_and_the_argument_wins(url: str) -> None:
    assert probe("live", FRAMEKEEPER_HEALTH_URL=url)[0] == 0
    assert probe("live", url, FRAMEKEEPER_HEALTH_URL="http://127.0.0.1:1")[0] == 0
    # A proxy of the environment is not asked.
    assert probe("live", url, http_proxy="http://127.0.0.1:1")[0] == 0


@pytest.mark.parametrize("wrong", ["nonsense", "file:///etc", "http://", "http://[", "http://127.0.0.1:x"])
def test_wrong_url_is_one_line_and_exit_1(wrong: str) -> None:
    assert probe("live", wrong)[0] == 1


def test_nobody_there_is_exit_1() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    status, line = probe("live", f"http://127.0.0.1:{port}")
    assert status == 1
    assert "no answer: " in line


@pytest.mark.slow
@pytest.mark.parametrize("drips", [False, True])
def test_answer_that_never_comes_or_never_ends_is_exit_1_in_5_seconds(drips: bool) -> None:
    def drip() -> None:
        link, _ = listener.accept()
        with link, contextlib.suppress(OSError):
            link.sendall(b"HTTP/1.1 200 OK\r\n")
            while True:
                link.sendall(b"X: y\r\n")
                time.sleep(0.2)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        if drips:
            threading.Thread(target=drip, daemon=True).start()
        status, line = probe("ready", f"http://127.0.0.1:{listener.getsockname()[1]}")
    assert status == 1
    assert "no answer within 5 s" in line


def test_answer_that_is_no_http_is_exit_1() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def speak() -> None:
            link, _ = listener.accept()
            with link:
                link.recv(1000)
                link.sendall(b"SSH-2.0-x\r\n")

        threading.Thread(target=speak, daemon=True).start()
        assert probe("live", f"http://127.0.0.1:{listener.getsockname()[1]}")[0] == 1
