"""README's lines for backup, restore, upgrade and removal, run as they stand there."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from msgspec import to_builtins

from compose.stack import PROJECT, Stack
from jobs.records import request
from system import wait_for

pytestmark = [pytest.mark.compose, pytest.mark.timeout(900)]


def lines_for(row: str) -> list[str]:
    """The commands of one row of README's table for Docker, in their order."""
    text = (PROJECT / "README.md").read_text(encoding="utf-8")
    [cell] = re.findall(rf"^\| {row} \| (.*) \|$", text, re.M)
    return [code for code in re.findall(r"`([^`]+)`", cell) if code.startswith("docker compose ")]


def follow(stack: Stack, lines: list[str], where: Path) -> None:
    """Type them into a shell in a directory. Fails with what the first that fails says."""
    assert lines
    for line in lines:
        done = subprocess.run(
            line, shell=True, cwd=where, env=stack.environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{line}: {done.stderr[-3000:]}"


def volumes(stack: Stack) -> list[str]:
    project = stack.environment["COMPOSE_PROJECT_NAME"]
    command = ["docker", "volume", "ls", "--quiet", "--filter", f"label=com.docker.compose.project={project}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def query(stack: Stack, sql: str) -> str:
    psql = ("psql", "--username", "framekeeper", "--tuples-only", "--no-align", "--command", sql)
    return stack.compose("exec", "-T", "postgres", *psql).strip()


@pytest.fixture
def removed(stack: Stack) -> Iterator[Stack]:
    """The stack with nothing left of it; afterwards it is up again."""
    stack.compose("down", "--volumes", "--timeout", "60")
    yield stack
    stack.up()


def test_what_was_backed_up_is_there_again_after_everything_was_removed(stack: Stack, tmp_path: Path) -> None:
    videos = [stack.make() for _ in range(2)]
    for video in videos:
        assert stack.finished(video)["status"] == "completed"
    content = httpx.get(f"{stack.url}/v1/videos/{videos[0]}/content").content
    before = query(stack, "SELECT count(*) FROM videos")
    follow(stack, lines_for("back up"), tmp_path)
    later = stack.make()
    assert stack.finished(later)["status"] == "completed"

    [remove, *_] = lines_for("remove")
    follow(stack, [f"{remove} --volumes"], tmp_path)
    assert volumes(stack) == []
    follow(stack, lines_for("restore"), tmp_path)

    assert query(stack, "SELECT count(*) FROM videos") == before
    for video in videos:
        assert stack.status(video)["status"] == "completed"
        assert stack.frames(video) == 9
    assert httpx.get(f"{stack.url}/v1/videos/{videos[0]}/content").content == content
    assert stack.status(later) == {}
    assert stack.finished(stack.make())["status"] == "completed"


def test_a_backup_goes_over_a_stack_that_runs(stack: Stack, tmp_path: Path) -> None:
    video = stack.make()
    assert stack.finished(video)["status"] == "completed"
    follow(stack, lines_for("back up"), tmp_path)
    assert httpx.delete(f"{stack.url}/v1/videos/{video}").status_code == 200
    wait_for("it is gone", lambda: stack.status(video) == {}, 30)
    follow(stack, lines_for("restore"), tmp_path)
    assert stack.frames(video) == 9


def test_up_migrates_a_database_of_an_older_version(removed: Stack) -> None:
    removed.compose("up", "--detach", "--wait", "--no-build", "postgres")
    migrate = (
        "from framekeeper.settings import load; from framekeeper.database.migrate import migrate; "
        "migrate(load().database_url, '0003')"
    )
    removed.compose("run", "--rm", "--no-deps", "-T", "--entrypoint", "python", "migrate", "-c", migrate)
    old = f"video_{0:032x}"
    asked = json.dumps(to_builtins(request(prompt="a cat")))
    query(
        removed,
        "INSERT INTO videos (id, model, queue, request, state, steps, attempt)"
        f" VALUES ('{old}', 'wan2.2-t2v-tiny', 'wan2.2-t2v-tiny/6', $${asked}$$, 'cancelled', 6, 1)",
    )
    removed.up()
    assert query(removed, "SELECT version_num FROM alembic_version") > "0003"
    assert removed.status(old)["status"] == "cancelled"
    assert removed.finished(removed.make())["status"] == "completed"
