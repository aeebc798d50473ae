import os
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from framekeeper import __version__
from system import free_port

PROJECT = Path(__file__).parents[1]


def framekeeper(*arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run the command line with these settings and no others."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FRAMEKEEPER_")}
    environment |= {f"FRAMEKEEPER_{name}": value for name, value in settings.items()}
    return subprocess.run(
        [sys.executable, "-m", "framekeeper", *arguments],
        check=False,
        env=environment,
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_version() -> None:
    for words in ("version", "--version"):
        finished = framekeeper(words)
        assert (finished.returncode, finished.stdout) == (0, f"{__version__}\n")


def test_help_names_every_command() -> None:
    finished = framekeeper("--help")
    for command in ("run", "gateway", "supervisor", "migrate", "model", "profile", "version"):
        assert command in finished.stdout


def test_the_installed_program_is_the_same() -> None:
    program = Path(sys.executable).with_name("framekeeper")
    finished = subprocess.run([program, "version"], check=False, capture_output=True, text=True)
    assert finished.stdout == f"{__version__}\n"


@pytest.mark.parametrize("command", ["run", "gateway", "supervisor", "migrate"])
def test_wrong_settings_are_lines_and_exit_status_2(command: str) -> None:
    finished = framekeeper(command, PORT="eighty", LOG_LEVEL="loud")
    assert finished.returncode == 2
    lines = finished.stderr.splitlines()
    assert [line.partition("=")[0] for line in lines] == ["FRAMEKEEPER_PORT", "FRAMEKEEPER_LOG_LEVEL"]


@pytest.mark.parametrize("command", ["run", "supervisor", "doctor", "triage", "profile show", "profile fit"])
def test_a_profile_that_is_not_there_is_told_by_the_variable_that_names_it(
    command: str, tmp_path: Path
) -> None:
    settings = {"VAR": str(tmp_path / "var"), "DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none"}
    settings |= {"PORT": str(free_port()), "SUPERVISOR_PORT": str(free_port())}
    finished = framekeeper(*command.split(), PROFILE="cpu-tinny", **settings)
    assert finished.returncode == 2
    expected = "FRAMEKEEPER_PROFILE: cpu-tinny: does not exist. Set: cpu-tiny."
    assert [line.partition(": ")[2] for line in finished.stderr.splitlines()] == [expected]


@pytest.mark.parametrize(
    ("command", "argument"),
    [("doctor", "PROFILE"), ("triage", "NAME"), ("profile show", "NAME"), ("profile check", "NAME")],
)
def test_a_profile_that_is_not_there_is_told_by_the_argument_that_names_it(
    command: str, argument: str, tmp_path: Path
) -> None:
    finished = framekeeper(*command.split(), "cpu-tinny", VAR=str(tmp_path))
    assert finished.returncode == 2
    assert f"{argument}: cpu-tinny: does not exist. Set: cpu-tiny." in finished.stderr


@pytest.mark.parametrize("command", ["gateway", "supervisor", "migrate"])
def test_a_missing_database_is_one_line_and_exit_status_2(command: str, tmp_path: Path) -> None:
    finished = framekeeper(command, VAR=str(tmp_path))
    assert finished.returncode == 2
    assert finished.stderr.startswith("FRAMEKEEPER_DATABASE_URL is not set: ")
    assert finished.stderr.count("\n") == 1


def test_migrate_brings_an_empty_database_up_to_date_and_may_be_repeated(empty_postgres_url: str) -> None:
    for _ in range(2):
        finished = framekeeper("migrate", DATABASE_URL=empty_postgres_url)
        assert (finished.returncode, finished.stderr) == (0, "")
    with psycopg.connect(empty_postgres_url) as connection:
        assert connection.execute("SELECT count(*) FROM videos").fetchone() == (0,)


def test_migrate_without_an_answer_is_one_line_and_exit_status_1() -> None:
    finished = framekeeper("migrate", DATABASE_URL="postgresql://nobody@127.0.0.1:1/none")
    assert finished.returncode == 1
    assert finished.stderr.startswith("the database does not answer (")
    assert "Connection refused" in finished.stderr
    assert finished.stderr.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize("command", [("keys", "list"), ("engines", "list"), ("incidents",)])
def test_a_look_into_a_database_that_is_away_is_one_line_with_the_cause(command: tuple[str, ...]) -> None:
    finished = framekeeper(*command, DATABASE_URL="postgresql://nobody:secret@127.0.0.1:1/none")
    assert finished.returncode == 1
    assert finished.stderr.startswith("the database does not answer (")
    assert "FRAMEKEEPER_DATABASE_URL" in finished.stderr
    assert "secret" not in finished.stderr
    assert finished.stderr.count("\n") == 1


@pytest.mark.parametrize("command", ["migrate", "gateway", "supervisor"])
def test_something_else_than_a_postgresql_url_is_exit_status_2(command: str) -> None:
    finished = framekeeper(command, DATABASE_URL="mysql://x?a=b")
    assert finished.returncode == 2
    assert "not a PostgreSQL URL" in finished.stderr
    assert "Traceback" not in finished.stderr


def test_migrate_names_a_schema_that_this_version_does_not_know(postgres_url: str) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    finished = framekeeper("migrate", DATABASE_URL=postgres_url)
    assert finished.returncode == 2
    assert "another version of Framekeeper" in finished.stderr
    assert "9999" in finished.stderr
    assert finished.stderr.count("\n") == 1


def test_migrate_names_what_the_account_may_not_do(empty_postgres_url: str) -> None:
    with psycopg.connect(empty_postgres_url, autocommit=True) as connection:
        name = sql.Identifier(connection.info.dbname)
        connection.execute(sql.SQL("ALTER DATABASE {} SET default_transaction_read_only = on").format(name))
    finished = framekeeper("migrate", DATABASE_URL=empty_postgres_url)
    assert finished.returncode == 2
    assert "in a read-only transaction" in finished.stderr
    assert finished.stderr.count("\n") == 1


def test_make_tiny_without_the_runtime_names_the_command_that_installs_it(tmp_path: Path) -> None:
    finished = framekeeper("model", "make-tiny", str(tmp_path / "model"), RUNTIMES=str(tmp_path))
    assert finished.returncode == 2
    assert "make runtime" in finished.stderr
    assert "docker/runtimes/install.py omni-0.30-cpu" in finished.stderr
    assert not (tmp_path / "model").exists()


def test_make_tiny_returns_the_engines_exit_status(tmp_path: Path) -> None:
    (tmp_path / "mine.safetensors").write_text("not ours")
    finished = framekeeper("model", "make-tiny", str(tmp_path), ENGINE_PYTHON=sys.executable)
    assert finished.returncode == 1
    assert "nothing was written" in finished.stderr


def test_an_unknown_command_is_exit_status_2() -> None:
    finished = framekeeper("fly")
    assert finished.returncode == 2
    assert "fly" in finished.stderr


def test_a_program_whose_launcher_is_gone_ends_at_once(tmp_path: Path) -> None:
    finished = framekeeper("version", DIE_WITH="1" if os.getpid() != 1 else "2")
    assert finished.returncode == 1
    assert finished.stdout == ""
