"""What browsers are told, what pages of others may not do, and connections that do not get going."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
import uvicorn

from framekeeper.gateway.app import create_app
from framekeeper.gateway.protocol import BoundedProtocol
from framekeeper.settings import Settings
from system import free_port


class Hasty(BoundedProtocol):
    header_seconds = 0.5


@contextmanager
def served_at(settings: Settings, *ports: int) -> Iterator[None]:
    """Serve one application at several ports with the gateway's own protocol."""
    config = uvicorn.Config(
        create_app(settings), log_level="warning", access_log=False, http=Hasty, server_header=False
    )
    server = uvicorn.Server(config)
    sockets = [socket.create_server(("127.0.0.1", port)) for port in ports]
    for each in sockets:
        each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    thread = threading.Thread(target=server.run, kwargs={"sockets": sockets}, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.005)
    try:
        yield
    finally:
        server.should_exit = True
        thread.join(20)


@pytest.fixture
def port(settings: Settings) -> Iterator[int]:
    port = free_port()
    with served_at(settings, port):
        yield port


@pytest.mark.parametrize("path", ["/", "/v1/videos", "/v1/nowhere", "/health/live", "/metrics"])
def test_every_answer_has_the_security_headers(shared_http: httpx.Client, path: str) -> None:
    answer = shared_http.get(path)
    assert "default-src 'self'" in answer.headers["content-security-policy"]
    assert "unsafe-inline" not in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["x-frame-options"] == "DENY"
    assert answer.headers["referrer-policy"] == "no-referrer"


def test_answers_of_the_api_are_not_cached_and_shared_with_no_origin(shared_http: httpx.Client) -> None:
    answer = shared_http.get("/v1/videos", headers={"Origin": "https://elsewhere.example"})
    assert answer.headers["cache-control"] == "no-store"
    assert [name for name in answer.headers if name.startswith("access-control")] == []
    preflight = shared_http.options(
        "/v1/videos",
        headers={"Origin": "https://elsewhere.example", "Access-Control-Request-Method": "POST"},
    )
    assert preflight.status_code == 405
    assert [name for name in preflight.headers if name.startswith("access-control")] == []


def test_a_page_of_another_origin_changes_nothing(shared_http: httpx.Client) -> None:
    base = str(shared_http.base_url).rstrip("/")
    for headers in (
        {"Origin": "https://elsewhere.example"},
        {"Origin": "null"},
        {"Origin": "http://[no-address"},
        {"Origin": base, "Sec-Fetch-Site": "cross-site"},
        {"Origin": "http://127.0.0.1:1", "Sec-Fetch-Site": "same-site"},
    ):
        answer = shared_http.post("/v1/videos", data={"prompt": "a cat"}, headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "cross_origin"), headers
        assert "content-security-policy" in answer.headers
    for headers in (
        {},
        {"Origin": base},
        {"Origin": "https://proxy.example", "Sec-Fetch-Site": "same-origin"},
    ):
        assert shared_http.post("/v1/videos", data={"prompt": "a cat"}, headers=headers).status_code == 200


def test_metrics_and_readiness_are_served_at_their_own_port_alone(settings: Settings) -> None:
    api, operation = free_port(), free_port()
    with served_at(settings.model_copy(update={"operation_port": operation}), api, operation):
        statuses = {
            path: [httpx.get(f"http://127.0.0.1:{port}{path}").status_code for port in (api, operation)]
            for path in ("/v1/videos", "/", "/docs", "/metrics", "/health/ready", "/health/live")
        }
    assert statuses == {
        "/v1/videos": [200, 404],
        "/": [200, 404],
        "/docs": [200, 404],
        "/metrics": [404, 200],
        "/health/ready": [404, 503],
        "/health/live": [200, 200],
    }


def closed_after(port: int, begin: bytes, slowly: bytes = b"", pause: float = 0.1) -> float:
    """Seconds until the server closes a connection that sends `begin` and then a byte at a time."""
    with socket.create_connection(("127.0.0.1", port), timeout=0.05) as connection:
        started = time.monotonic()
        connection.sendall(begin)
        rest = list(slowly)
        while time.monotonic() - started < 5:
            try:
                if connection.recv(65536) == b"":
                    break
            except TimeoutError:
                pass
            except ConnectionError:
                break
            if rest:
                connection.send(bytes([rest.pop(0)]))
            time.sleep(pause)
        return time.monotonic() - started


@pytest.mark.slow
def test_a_connection_that_does_not_get_going_is_closed(port: int) -> None:
    headers = b"GET /health/live HTTP/1.1\r\nHost: x\r\n"
    assert 0.4 < closed_after(port, b"") < 2
    assert 0.4 < closed_after(port, headers, b"X-Slow: " + b"a" * 100) < 2
    # A second request on the connection has to get going as well.
    assert 0.4 < closed_after(port, headers + b"\r\n", b"GET / HTTP/1.1\r\nX: " + b"a" * 100) < 2


@pytest.mark.slow
def test_a_connection_that_is_kept_alive_is_not_closed_so_soon(port: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    connection.connect()
    first = connection.sock
    for _ in range(3):
        connection.request("GET", "/health/live")
        answer = connection.getresponse()
        assert (answer.status, answer.getheader("server")) == (200, None)
        answer.read()
        time.sleep(0.8)
    assert connection.sock is first
    connection.close()


def test_headers_without_end_are_refused(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nX-Large: ")
        received = b""
        try:
            for _ in range(40):
                connection.sendall(b"a" * 8192)
            received = connection.recv(4096)
        except ConnectionError:
            return
        assert received.startswith(b"HTTP/1.1 400")
