"""The password's file: made once, whole, for its owner and group alone."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote

import pytest
from typer.testing import CliRunner

from framekeeper.cli import app
from framekeeper.launcher.secret import make


def test_a_password_is_made_once_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "secrets" / "database-password"
    assert make(path) is True
    first = path.read_text()
    assert make(path) is False
    assert path.read_text() == first
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_owner_and_group_may_read_it_and_nobody_else_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    path = tmp_path / "password"
    before = os.umask(umask)
    try:
        make(path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o440


def test_passwords_are_long_differ_and_fit_into_a_url_as_they_are(tmp_path: Path) -> None:
    paths = [tmp_path / str(n) for n in range(50)]
    for path in paths:
        make(path)
    passwords = {path.read_text() for path in paths}
    assert len(passwords) == 50
    assert all(len(each) >= 43 and quote(each, safe="") == each for each in passwords)


def test_of_many_makers_at_once_one_succeeds_and_leaves_no_draft(tmp_path: Path) -> None:
    path = tmp_path / "password"
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(make, [path] * 40))
    assert made.count(True) == 1
    assert list(tmp_path.iterdir()) == [path]


def test_the_command_says_which_were_made_and_never_what_is_in_them(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    make(old)
    done = CliRunner().invoke(app, ["secret", "make", str(old), str(new)])
    assert done.exit_code == 0
    assert str(new) in done.output
    assert old.read_text() not in done.output
    assert new.read_text() not in done.output


def test_a_directory_that_cannot_be_made_ends_the_command(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = CliRunner().invoke(app, ["secret", "make", str(tmp_path / "file" / "password")])
    assert done.exit_code == 1
    assert "file" in done.output
