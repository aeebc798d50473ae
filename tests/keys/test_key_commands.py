"""`framekeeper keys` as somebody types it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import psycopg
import pytest

from framekeeper.keys.key import SECRET, digest

Run = Callable[..., subprocess.CompletedProcess[str]]

pytestmark = pytest.mark.slow


@pytest.fixture
def keys(postgres_url: str) -> Run:
    environment = {name: value for name, value in os.environ.items() if "FRAMEKEEPER" not in name}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "framekeeper", "keys", *arguments],
            env=environment | {"FRAMEKEEPER_DATABASE_URL": postgres_url},
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip

    return run


def test_a_key_is_printed_once_alone_on_standard_output(keys: Run, postgres_url: str) -> None:
    made = keys("create", "alice", "--jobs", "3", "--retention-days", "2", "--priority", "high")
    assert made.returncode == 0, made.stderr
    secret = made.stdout.strip()
    assert SECRET.fullmatch(secret)
    with psycopg.connect(postgres_url) as connection:
        row = connection.execute("SELECT hash, scopes, limits FROM api_keys").fetchone()
    assert row == (
        digest(secret),
        ["read", "submit"],
        {"jobs": 3, "retention_seconds": 172800.0, "priority": "high"},
    )
    listed = keys("list")
    assert "alice" in listed.stdout
    assert "read, submit" in listed.stdout
    assert "jobs=3, priority=high" in listed.stdout
    assert secret not in listed.stdout


def test_mistakes_are_a_line_and_exit_with_2(keys: Run) -> None:
    assert keys("create", "alice").returncode == 0
    for arguments, words in (
        (("create", "alice"), "there is a key of this name"),
        (("create", "a b"), "at most 64 letters"),
        (("create", "bob", "--scope", "root"), "root"),
        (("revoke", "nobody"), "there is no key"),
    ):
        refused = keys(*arguments)
        assert refused.returncode == 2, arguments
        assert words in refused.stderr
        assert "Traceback" not in refused.stderr


def test_the_list_tells_who_fills_the_queue(keys: Run, postgres_url: str) -> None:
    for name in ("alice", "bob"):
        keys("create", name)
    with psycopg.connect(postgres_url) as connection:
        for video, owner in (("video_1", "alice"), ("video_2", "alice"), ("video_3", "bob")):
            connection.execute(
                "INSERT INTO videos (id, model, queue, request, steps, owner) "
                "SELECT %s, 'm', 'q', '{}', 1, id FROM api_keys WHERE name = %s",
                (video, owner),
            )
        connection.execute("UPDATE videos SET state = 'cancelled' WHERE id = 'video_3'")
    heading, *lines = keys("list").stdout.splitlines()
    at = heading.index("unfinished")
    assert [line[at : at + 10].strip() for line in lines] == ["2", "0"]


def test_a_revoked_key_stays_in_the_list(keys: Run) -> None:
    keys("create", "boss", "--scope", "admin")
    assert keys("revoke", "boss").returncode == 0
    assert keys("revoke", "boss").returncode == 0
    (line,) = [line for line in keys("list").stdout.splitlines() if "boss" in line]
    assert "admin" in line
    assert "revoked" in line
