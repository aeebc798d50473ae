"""The command line. Thin: every command reads the settings, imports its part, and returns its exit status.

0 is fine, 1 a failure, 2 a configuration that cannot work.
"""

# Imports stand in the commands, so that each command loads only what it needs.
# ruff: noqa: PLC0415

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from framekeeper import __version__
from framekeeper.settings import Settings, SettingsError, load

app = typer.Typer(
    name="framekeeper",
    help="Keeps a Wan2.2 text-to-video service alive.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
model_app = typer.Typer(help="Checkpoints.", no_args_is_help=True)
app.add_typer(model_app, name="model")
secret_app = typer.Typer(help="Passwords in files.", no_args_is_help=True)
app.add_typer(secret_app, name="secret")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _options(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None: ...


@app.command()
def run() -> None:
    """Run everything on this machine without Docker: database, supervisor, gateway."""
    from framekeeper import logs
    from framekeeper.launcher.run import run as run_all

    settings = load()
    logs.configure(settings, "launcher")
    raise typer.Exit(run_all(settings))


@app.command()
def gateway() -> None:
    """Run the HTTP gateway (gunicorn with uvicorn workers)."""
    from framekeeper.launcher.preflight import CannotRun, gateway_port_fault

    settings = _with_database(load())
    if fault := gateway_port_fault(settings):
        raise CannotRun(fault)
    sys.stdout.flush()
    arguments = ["-m", "gunicorn", "--config", "python:framekeeper.gateway.gunicorn"]
    os.execv(sys.executable, [sys.executable, *arguments])  # noqa: S606  (ourselves, without a shell)


@app.command()
def supervisor() -> None:
    """Run this host's supervisor and its engines."""
    from framekeeper import logs
    from framekeeper.engine.supervisor import main as supervise

    settings = load()
    logs.configure(settings, "supervisor")
    raise typer.Exit(supervise(settings))


@app.command()
def migrate() -> None:
    """Bring the database to this version's schema."""
    import psycopg

    from framekeeper.database.migrate import SchemaError
    from framekeeper.database.migrate import migrate as migrate_schema

    settings = _with_database(load())
    try:
        migrate_schema(settings.database_url)
    except psycopg.OperationalError as error:
        _say(
            f"the database does not answer ({' '.join(str(error).split())}): check that PostgreSQL runs, and "
            "FRAMEKEEPER_DATABASE_URL"
        )
        raise typer.Exit(1) from None
    except SchemaError as error:
        raise SettingsError(f"FRAMEKEEPER_DATABASE_URL: {error}") from None
    except psycopg.ProgrammingError as error:
        raise SettingsError(f"FRAMEKEEPER_DATABASE_URL is not a PostgreSQL URL: {error}") from None
    typer.echo("the schema is up to date")


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(__version__)


@model_app.command("make-tiny")
def make_tiny(
    directory: Annotated[Path, typer.Argument(help="Where to write it; left alone if it is there already.")],
    kind: Annotated[
        Literal["t2v", "ti2v", "i2v"],
        typer.Option(help="From text, from text with or without a picture, or from a picture and text."),
    ] = "t2v",
) -> None:
    """Write a Wan2.2-shaped checkpoint of a few megabytes with random weights."""
    from framekeeper.launcher.checkpoint import engine_python

    python = engine_python(load())
    finished = subprocess.run(
        [python, "-m", "framekeeper.checkpoint.tiny", directory.absolute(), kind], check=False
    )
    raise typer.Exit(finished.returncode)


@secret_app.command("make")
def make_secret(
    files: Annotated[list[Path], typer.Argument(help="Where to write them; what is there stays.")],
) -> None:
    """Write a random password into each file that does not exist."""
    from framekeeper.launcher.secret import make

    for file in files:
        try:
            typer.echo(f"{file}: {'made' if make(file) else 'is there already'}")
        except OSError as error:
            _say(f"{file} cannot be written ({error.strerror}): change the owner of its directory")
            raise typer.Exit(1) from None


def _with_database(settings: Settings) -> Settings:
    if not settings.database_url:
        raise SettingsError(
            "FRAMEKEEPER_DATABASE_URL is not set: set a PostgreSQL URL such as "
            "postgresql://user@host/framekeeper, or use `framekeeper run`, which brings its own."
        )
    return settings


def _say(text: str) -> None:
    typer.echo(text, err=True)


def _follow_parent() -> None:
    """End with the launcher that started us, however it ends."""
    from framekeeper.launcher.child import DIE_WITH

    if parent := os.environ.pop(DIE_WITH, ""):
        from framekeeper.engine.parent_death import die_with_parent

        die_with_parent(int(parent))


def main() -> None:
    """Entry point: faults of the configuration are lines on standard error, never a traceback."""
    from framekeeper.client.commands import register as register_client
    from framekeeper.diagnosis.commands import engines_app, incidents
    from framekeeper.doctor.commands import doctor
    from framekeeper.doctor.triage.commands import triage
    from framekeeper.doctor.weights.commands import app as weights_app
    from framekeeper.keys.commands import keys_app
    from framekeeper.launcher.preflight import CannotRun
    from framekeeper.profiles.commands import app as profile_app

    _follow_parent()
    try:
        Path.cwd()
    except OSError as error:
        _say(f"the working directory cannot be used ({error.strerror}): change to another one")
        sys.exit(2)
    app.add_typer(profile_app, name="profile")
    app.add_typer(engines_app, name="engines")
    app.add_typer(weights_app, name="weights")
    app.add_typer(keys_app, name="keys")
    register_client(app)
    app.command()(incidents)
    app.command()(doctor)
    app.command()(triage)
    try:
        app()
    except (SettingsError, CannotRun) as error:
        _say(str(error))
        sys.exit(2)
    except OSError as error:
        # Of a write, as to a full disk, Python names no file; everything else is a fault of ours.
        if error.filename is not None or error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            raise
        sys.stdout = None
        _say(f"the output cannot be written: {error.strerror}")
        sys.exit(1)


if __name__ == "__main__":
    main()
