"""Which names a gateway answers to, and when it says that it is open to all."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import httpx
import pytest

from framekeeper.gateway.reach import Names, open_to_all, reached_beyond_loopback
from framekeeper.settings import Settings
from gateway.serving import served
from system import System

LOOPBACK = [
    "127.0.0.1:8000",
    "127.9.9.9",
    "[::1]:8000",
    "localhost",
    "LOCALHOST:80",
    "localhost.",
    "a.localhost",
]
NEAR = [
    "gateway:8000",
    "10.0.0.7",
    "[fe80::1]:8000",
    "0.0.0.0:8000",
    "host.docker.internal",
    "fk-gateway.ns.svc.cluster.local",
]
STRANGE = [
    "evil.example",
    "evil.example:8000",
    "127.0.0.1.evil.example",
    "localhost.evil.example",
    "evil.local.example",
]
MALFORMED = ["", "localhost:80@evil.example", "localhost:evil", "[::1", "[::1]evil.example", "::1", "[]"]


def settings(**values: Any) -> Settings:
    return Settings(database_url="postgresql://x", **values)


@pytest.mark.parametrize(
    ("values", "answered", "refused"),
    [
        ({}, LOOPBACK, [*NEAR, *STRANGE, *MALFORMED]),
        ({"host": "localhost"}, LOOPBACK, STRANGE),
        ({"host": "0.0.0.0"}, [*LOOPBACK, *NEAR], [*STRANGE, *MALFORMED]),
        ({"host": "::"}, [*LOOPBACK, *NEAR], STRANGE),
        ({"allowed_hosts": "v.example, Other.example"}, ["v.example", "other.example:8000"], STRANGE),
        ({"allowed_hosts": "*"}, [*LOOPBACK, *NEAR, *STRANGE], []),
        ({"auth": "on"}, [*LOOPBACK, *NEAR, *STRANGE], []),
    ],
)  # fmt: skip
def test_without_keys_only_names_that_no_stranger_can_own_are_answered(
    values: dict[str, Any], answered: list[str], refused: list[str]
) -> None:
    names = Names(settings(**values))
    assert [each for each in answered if not names.include(each)] == []
    assert [each for each in refused if names.include(each)] == []
    assert names.include(None)
    assert names.include(socket.gethostname())


@pytest.mark.parametrize("path", ["/", "/v1/videos", "/metrics", "/page/app.js", "/nowhere"])
def test_a_rebound_name_reads_nothing_and_is_told_the_setting(shared_http: httpx.Client, path: str) -> None:
    answer = shared_http.get(path, headers={"Host": "evil.example"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (421, "host_not_allowed")
    assert "FRAMEKEEPER_ALLOWED_HOSTS" in answer.json()["error"]["message"]
    assert "evil.example" in answer.json()["error"]["message"]
    assert "content-security-policy" in answer.headers
    assert shared_http.get("/v1/videos", headers={"Host": "localhost:1"}).status_code == 200


def test_a_rebound_page_that_is_of_one_origin_changes_nothing(shared_http: httpx.Client) -> None:
    headers = {"Host": "evil.example", "Origin": "http://evil.example", "Sec-Fetch-Site": "same-origin"}
    answer = shared_http.post("/v1/videos", data={"prompt": "a cat"}, headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (421, "host_not_allowed")


def test_a_gateway_with_keys_answers_to_any_name(shared_settings: Settings) -> None:
    with served(shared_settings.model_copy(update={"auth": "on"})) as base:
        assert httpx.get(f"{base}/health/live", headers={"Host": "videos.example"}).status_code == 200


@pytest.mark.parametrize(
    ("values", "beyond"),
    [
        ({}, False),
        ({"host": "::1"}, False),
        ({"host": "0.0.0.0"}, True),
        ({"host": "192.0.2.1"}, True),
        # Compose: all of the container, of which one port is published.
        ({"host": "0.0.0.0", "publish": "127.0.0.1:8000"}, False),
        ({"host": "0.0.0.0", "publish": "[::1]:8000"}, False),
        ({"host": "0.0.0.0", "publish": "127.0.0.1::8000"}, False),
        ({"host": "0.0.0.0", "publish": "0.0.0.0:8000"}, True),
        ({"host": "0.0.0.0", "publish": "8000"}, True),
    ],
)  # fmt: skip
def test_an_open_gateway_that_others_reach_warns_unless_it_was_meant(
    values: dict[str, Any], beyond: bool
) -> None:
    assert reached_beyond_loopback(settings(**values)) is beyond
    warning = open_to_all(settings(**values))
    assert (warning is not None) is beyond
    if warning:
        assert "FRAMEKEEPER_AUTH=on" in warning
        assert "\n" not in warning
    assert open_to_all(settings(**values, auth="off")) is None
    assert open_to_all(settings(**values, auth="on")) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("values", "lines"),
    [
        ({}, 1),
        ({"auth": "off"}, 0),
        ({"auth": "on"}, 0),
        ({"publish": "127.0.0.1:8000"}, 0),
    ],
    ids=["open", "meant", "keys", "published-on-loopback"],
)
def test_the_warning_is_one_line_of_the_gateways_log(
    tmp_path: Path, postgres_url: str, values: dict[str, str], lines: int
) -> None:
    system = System(tmp_path, postgres_url, host="0.0.0.0", gateway_processes=2, **values)
    try:
        url = system.start_gateway()
        assert httpx.get(f"{url}/health/live", headers={"Host": "gateway:8000"}).status_code == 200
        log = "".join(file.read_text() for file in tmp_path.glob("gateway*.log"))
        assert log.count("without API keys: whoever reaches it") == lines, log
        system.close()
    finally:
        system.abandon()
