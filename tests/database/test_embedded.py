import importlib.util
import os
import pwd
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import psycopg
import pytest

from framekeeper.database import account, embedded
from framekeeper.database.account import Account
from framekeeper.database.embedded import EmbeddedError, embedded_postgres, revive, running_server
from shared_memory import segments

PROJECT = Path(__file__).parents[2]
AS_ROOT = os.geteuid() == 0

HOLD = """
import sys, time
from pathlib import Path
from framekeeper.database.embedded import embedded_postgres
with embedded_postgres(Path(sys.argv[1])) as url:
    print(url, flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def directory(open_directory: Path) -> Iterator[Path]:
    path = open_directory / "var" / "postgres"
    yield path
    embedded.stop(path)


def ask(url: str, question: str = "SELECT 1") -> object:
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(question).fetchone()  # type: ignore[arg-type]
    return row and row[0]


def hold(directory: Path) -> tuple[subprocess.Popen[str], str]:
    """Another process that uses the directory until it reads a line or dies."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, directory], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def processes_of(directory: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if str(directory) in process.cmdline() or process.cwd() == str(directory):
                found.append(process)
    return found


@pytest.mark.slow
def test_what_was_written_is_there_the_next_time(directory: Path) -> None:
    with embedded_postgres(directory) as url, psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 42 AS number")
    with embedded_postgres(directory) as url:
        assert ask(url, "SELECT number FROM kept") == 42


def test_nothing_is_left_at_the_end(directory: Path) -> None:
    with embedded_postgres(directory) as url:
        ask(url)
        running = processes_of(directory)
        assert running
        # Shared memory with a name outlives a server that is killed; its own is in its data directory.
        assert segments(process.pid for process in running) == set()
    assert processes_of(directory) == []
    assert not (directory / "postmaster.pid").exists()
    assert not list(directory.glob(".s.PGSQL*"))


@pytest.mark.slow
def test_nothing_listens_on_a_network_and_others_are_kept_from_the_socket(directory: Path) -> None:
    with embedded_postgres(directory) as url:
        server = running_server(directory)
        assert server is not None
        assert [link for link in server.net_connections("inet") if link.status == psutil.CONN_LISTEN] == []
        assert stat.S_IMODE((directory / ".s.PGSQL.5432").stat().st_mode) & 0o077 == 0
        assert ask(url, "SHOW fsync") == "on"


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["with some spaces", "x" * 120, "quotes ' and \" and $HOME and ünïcode, comma", "per%20cent"]
)
def test_any_path_works(open_directory: Path, name: str) -> None:
    directory = open_directory / name / "postgres"
    with embedded_postgres(directory) as url:
        assert ask(url) == 1
        assert Path(str(ask(url, "SHOW data_directory"))) == directory
        sockets = embedded.socket_directory(directory)
        assert stat.S_IMODE(sockets.stat().st_mode) == 0o700
    assert not sockets.exists()


@pytest.mark.slow
def test_a_relative_path_means_the_same_after_changing_directory(
    open_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(open_directory)
    with embedded_postgres(Path("var/postgres")) as url:
        monkeypatch.chdir("/")
        assert ask(url) == 1
    assert processes_of(open_directory / "var" / "postgres") == []


@pytest.mark.slow
def test_a_server_that_a_killed_process_left_is_used_again(directory: Path) -> None:
    process, url = hold(directory)
    server = running_server(directory)
    process.kill()
    process.wait()
    assert server is not None
    assert ask(url) == 1
    with embedded_postgres(directory) as again:
        assert running_server(directory) == server
        assert ask(again) == 1
    assert processes_of(directory) == []


@pytest.mark.slow
def test_the_last_of_two_users_stops_the_server(directory: Path) -> None:
    process, url = hold(directory)
    with embedded_postgres(directory):
        pass
    assert ask(url) == 1
    process.communicate("\n", timeout=30)
    assert processes_of(directory) == []


@pytest.mark.slow
def test_two_that_start_together_share_one_server(directory: Path) -> None:
    both = [
        subprocess.Popen(
            [sys.executable, "-c", HOLD, directory], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    urls = [process.stdout.readline().strip() for process in both if process.stdout]
    assert [ask(url) for url in urls] == [1, 1]
    for process in both:
        process.communicate("\n", timeout=30)
    assert [process.returncode for process in both] == [0, 0]
    assert processes_of(directory) == []


@pytest.mark.slow
def test_a_number_in_postmaster_pid_that_is_another_program_is_no_server(directory: Path) -> None:
    process, _ = hold(directory)
    content = (directory / "postmaster.pid").read_text().splitlines()
    process.communicate("\n", timeout=30)
    (directory / "postmaster.pid").write_text("\n".join([str(os.getpid()), *content[1:]]) + "\n")
    assert running_server(directory) is None
    with embedded_postgres(directory) as url:
        assert ask(url) == 1


@pytest.mark.slow
def test_a_server_that_was_killed_is_revived_with_its_data(directory: Path) -> None:
    log_file = directory.with_name("postgres.log")
    with embedded_postgres(directory) as url:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 42 AS number")
        assert revive(directory, log_file) is False
        server = running_server(directory)
        assert server is not None
        server.kill()
        server.wait(10)
        assert revive(directory, log_file) is True
        assert ask(url, "SELECT number FROM kept") == 42


@pytest.mark.slow
def test_a_server_that_was_killed_is_revived_while_its_number_still_counts_as_a_process(
    directory: Path,
) -> None:
    log_file = directory.with_name("postgres.log")
    with embedded_postgres(directory, log_file=log_file) as url:
        zombies = []
        for _ in range(2):
            server = running_server(directory)
            assert server is not None
            zombies.append(embedded._children[directory])  # held, as a reference in a traceback does
            server.kill()
            while running_server(directory) is not None:
                time.sleep(0.01)
            assert revive(directory, log_file) is True
            assert ask(url) == 1
        assert not [zombie for zombie in zombies if zombie.is_running()]


def test_a_number_in_the_sockets_lock_file_that_is_another_program_is_no_server(directory: Path) -> None:
    with embedded_postgres(directory):
        pass
    lock = embedded.socket_directory(directory) / ".s.PGSQL.5432.lock"
    account = Account.for_directory(directory)
    stranger = subprocess.Popen(["sleep", "60"], user=account.uid, group=account.gid)
    try:
        lock.parent.mkdir(mode=0o700, exist_ok=True)
        lock.write_text(f"{stranger.pid}\n{directory}\n1\n5432\n{lock.parent}\n")
        account.give(lock)
        with embedded_postgres(directory) as url:
            assert ask(url) == 1
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_cluster_whose_making_was_killed_is_made_anew(directory: Path) -> None:
    unfinished = directory.with_name(".postgres.unfinished")
    unfinished.mkdir(parents=True)
    (unfinished / "PG_VERSION").write_text("18\n")
    with embedded_postgres(directory) as url:
        assert ask(url) == 1
    assert not unfinished.exists()


@pytest.mark.slow
def test_a_throwaway_server_dies_with_its_process(directory: Path) -> None:
    code = HOLD.replace("Path(sys.argv[1])", "Path(sys.argv[1]), throwaway=True")
    process = subprocess.Popen(
        [sys.executable, "-c", code, directory], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline()
    process.kill()
    process.wait()
    deadline = time.monotonic() + 10
    while processes_of(directory) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert processes_of(directory) == []


def refusal(directory: Path) -> str:
    """The one line that says why the directory cannot be used."""
    with pytest.raises(EmbeddedError) as caught, embedded_postgres(directory):
        pass
    assert "\n" not in str(caught.value)
    return str(caught.value)


def stand_in(place: Path, name: str, ready: Path) -> None:
    """A program that hangs, and has started another one that holds its output."""
    place.mkdir(parents=True, exist_ok=True)
    place.chmod(0o755)
    program = place / name
    program.write_text(f"#!/bin/sh\nsleep 600 &\necho $! > {ready}\nwait\n")
    program.chmod(0o755)


def ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_an_initdb_that_hangs_is_ended_with_all_it_started_and_told(
    open_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = open_directory / "ready"
    ready.touch()
    ready.chmod(0o666)
    stand_in(open_directory / "pg" / "bin", "initdb", ready)
    monkeypatch.setattr(embedded, "_binaries", lambda: open_directory / "pg" / "bin")
    monkeypatch.setattr(embedded, "INITDB_SECONDS", 1.0)
    told = refusal(open_directory / "postgres")
    assert "initdb was not done within 1 s): see whether that disk answers, or set FRAMEKEEPER_VAR" in told
    assert ended(int(ready.read_text()))
    assert list(open_directory.glob(".postgres.unfinished")) == []


def test_a_useradd_that_hangs_is_ended_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path / "bin", "useradd", tmp_path / "ready")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    monkeypatch.setattr(account, "USERADD_SECONDS", 1.0)
    with pytest.raises(account.AccountError, match=r"useradd was not done within 1 s.*FRAMEKEEPER_DATABASE"):
        account._create_user()
    assert ended(int((tmp_path / "ready").read_text()))


def test_another_major_version_is_refused(directory: Path) -> None:
    directory.mkdir(parents=True)
    (directory / "PG_VERSION").write_text("16\n")
    assert "made by PostgreSQL 16, this is 18" in refusal(directory)


def test_a_version_that_is_no_text_is_refused(directory: Path) -> None:
    directory.mkdir(parents=True)
    (directory / "PG_VERSION").write_bytes(b"\xc8\x00")
    assert "this is 18" in refusal(directory)


def test_a_damaged_database_is_told_at_once_and_left_alone(directory: Path) -> None:
    with embedded_postgres(directory):
        pass
    shutil.rmtree(directory / "base")
    began = time.monotonic()
    assert "PostgreSQL did not start: " in refusal(directory)
    assert time.monotonic() - began < 30
    assert running_server(directory) is None
    assert (directory / "global" / "pg_control").exists()


def test_a_directory_with_other_things_is_left_alone(directory: Path) -> None:
    directory.mkdir(parents=True)
    (directory / "thesis.txt").write_text("mine")
    assert "not a PostgreSQL database" in refusal(directory)
    assert (directory / "thesis.txt").read_text() == "mine"


def test_a_parent_that_is_a_file_is_named(open_directory: Path) -> None:
    (open_directory / "var").write_text("")
    assert str(open_directory / "var") in refusal(open_directory / "var" / "postgres")


def test_the_missing_package_is_named_with_what_to_do(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    line = refusal(directory)
    assert "make setup" in line
    assert "FRAMEKEEPER_DATABASE_URL" in line


def test_too_little_space_is_told_before_anything_is_written(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(embedded.shutil, "disk_usage", lambda path: usage._replace(free=50 << 20))
    assert "50 MiB free, a database needs 160" in refusal(directory)
    assert not directory.exists()


def test_a_disk_that_fills_up_meanwhile_is_told_in_one_line(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "FREE_BYTES_NEEDED", 0)
    line = refusal(small_disk / "postgres")
    assert "the disk is full" in line
    assert "FRAMEKEEPER_VAR" in line
    assert [path.name for path in small_disk.iterdir() if "lock" not in path.name] == []


@pytest.mark.skipif(not AS_ROOT, reason="only root runs it as another account")
def test_root_runs_it_as_an_account_without_rights(directory: Path) -> None:
    with embedded_postgres(directory):
        server = running_server(directory)
        assert server is not None
        assert server.uids().effective != 0
        assert server.gids().effective != 0
        groups = next(
            line for line in Path(f"/proc/{server.pid}/status").read_text().splitlines() if "Groups" in line
        )
        assert groups.split() == ["Groups:"]
        assert pwd.getpwuid(server.uids().effective).pw_shell.endswith("nologin")


@pytest.mark.slow
@pytest.mark.skipif(not AS_ROOT, reason="only root runs it as another account")
def test_parents_get_the_right_to_pass_and_no_other(open_directory: Path) -> None:
    closed, open_ = open_directory / "closed", open_directory / "closed" / "open"
    beside = closed / "beside"
    for step, mode in ((closed, 0o700), (open_, 0o755), (beside, 0o700)):
        step.mkdir()
        step.chmod(mode)
    with embedded_postgres(open_ / "postgres") as url:
        assert ask(url) == 1
    modes = [stat.S_IMODE(step.stat().st_mode) for step in (closed, open_, beside)]
    assert modes == [0o701, 0o755, 0o700]


@pytest.mark.slow
@pytest.mark.skipif(not AS_ROOT, reason="only root can leave its account")
def test_an_ordinary_account_runs_it_as_itself(open_directory: Path) -> None:
    nobody = pwd.getpwnam("nobody")
    account = Account(nobody.pw_uid, nobody.pw_gid)
    packages = Path(psycopg.__file__).parents[1]
    environment = {"PYTHONPATH": f"{PROJECT / 'server'}:{packages}", "PATH": os.environ["PATH"]}
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    identity = {"user": account.uid, "group": account.gid, "extra_groups": [], "cwd": "/", "env": environment}
    python = next(
        (
            candidate
            for candidate in (sys.executable, f"/usr/bin/{version}", f"/usr/local/bin/{version}")
            if _runs([candidate, "-c", "import psycopg, psutil, framekeeper.database.embedded"], identity)
        ),
        None,
    )
    if python is None:
        pytest.skip("no interpreter that an ordinary account may run")
    home = open_directory / "home"
    home.mkdir()
    account.give(home)
    process = subprocess.Popen(
        [python, "-c", HOLD, home / "postgres"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        **identity,  # type: ignore[call-overload]
    )
    assert process.stdout is not None
    url = process.stdout.readline().strip()
    assert ask(url) == 1
    server = running_server(home / "postgres")
    assert server is not None
    assert server.uids().effective == nobody.pw_uid
    process.communicate("\n", timeout=30)
    assert process.returncode == 0
    # What belongs to somebody else cannot be used, and says so.
    other = open_directory / "other"
    other.mkdir()
    other.chmod(0o755)
    refused = subprocess.run(
        [python, "-c", HOLD, other / "postgres"],
        check=False,
        capture_output=True,
        text=True,
        **identity,  # type: ignore[call-overload]
    )
    assert "cannot be written (Permission denied)" in refused.stderr.splitlines()[-1]


def _runs(command: list[str], identity: dict[str, object]) -> bool:
    try:
        return subprocess.run(command, check=False, capture_output=True, **identity).returncode == 0  # type: ignore[call-overload,no-any-return]
    except OSError:
        return False


@pytest.mark.skipif(not AS_ROOT, reason="an ordinary account meets its own socket directory only")
def test_a_socket_directory_that_someone_else_made_is_not_trusted(open_directory: Path) -> None:
    directory = open_directory / ("x" * 120) / "postgres"
    sockets = embedded.socket_directory(directory)
    sockets.mkdir(mode=0o777)
    sockets.chmod(0o777)
    try:
        assert "remove it" in refusal(directory)
    finally:
        sockets.rmdir()


@pytest.mark.slow
def test_stopping_ends_clients_too(directory: Path) -> None:
    with embedded_postgres(directory) as url:
        connection = psycopg.connect(url)
        began = time.monotonic()
    assert time.monotonic() - began < embedded.STOP_SECONDS / 2
    with pytest.raises(psycopg.OperationalError):
        connection.execute("SELECT 1")
    connection.close()


@pytest.mark.slow
def test_a_server_that_does_not_end_is_killed(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "STOP_SECONDS", 0.5)
    with embedded_postgres(directory):
        server = running_server(directory)
        assert server is not None
        server.send_signal(signal.SIGSTOP)
        monkeypatch.setattr(embedded, "QUIT_SECONDS", 0.5)
    assert not server.is_running()
