"""`framekeeper incidents` and `framekeeper engines`: what broke, and the operator's word about it."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Annotated, TypeVar

import psycopg
import typer
from rich.console import Console
from rich.padding import Padding
from rich.table import Table

from framekeeper.database.embedded import database_url, running_server
from framekeeper.database.pool import Database
from framekeeper.errors import DatabaseUnavailable, FramekeeperError
from framekeeper.jobs import engines as engine_rows
from framekeeper.jobs import incidents as incident_rows
from framekeeper.jobs.incidents import IncidentRow
from framekeeper.settings import SettingsError, load

Result = TypeVar("Result")
#: Columns of a terminal that the table of incidents needs.
WIDE = 120
engines_app = typer.Typer(help="Engines of all supervisors.", no_args_is_help=True)


def incidents(
    engine: Annotated[str | None, typer.Option(help="Only those of this engine, HOST/GROUP.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=100, help="How many, the newest first.")] = 20,
    details: Annotated[bool, typer.Option(help="With the log lines around the first error.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Whole records as JSON.")] = False,
) -> None:
    """List unplanned ends of engines: when, why, what was done."""
    rows, _ = with_database(lambda database: incident_rows.page(database, limit=limit, engine_id=engine))
    if as_json:
        typer.echo(json.dumps([row.record | {"id": row.id} for row in rows], indent=2, default=str))
        return
    if not rows:
        typer.echo("no incidents")
        return
    console = _console()
    if console.width < WIDE:
        for row in rows:
            for line in _block(row):
                console.print(line, highlight=False, markup=False)
    else:
        console.print(_table(rows))
    if details:
        for row in rows:
            typer.echo(f"\n{row.id}: {row.record['cause']}\n")
            for line in row.record["excerpt"]:
                typer.echo(f"    {line}")


@engines_app.command("list")
def list_engines() -> None:
    """List engines with their state."""
    found = with_database(engine_rows.all_engines)
    table = Table(box=None, pad_edge=False)
    for column in ("engine", "state", "profile", "restarts", "heard of", "detail"):
        table.add_column(column, overflow="fold")
    for each in found:
        table.add_row(
            each.id,
            each.state.value + (f" ({each.phase})" if each.phase else ""),
            each.profile,
            str(each.restarts),
            f"{each.age_seconds:.0f} s ago",
            each.detail or "",
        )
    _console().print(table)


@engines_app.command("reset")
def reset(engine: Annotated[str, typer.Argument(help="Engine, HOST/GROUP.")]) -> None:
    """Put an engine back on its profile: off its fallback and limits, and started again if it had stopped."""
    if not with_database(lambda database: incident_rows.reset_rung(database, engine)):
        typer.echo(f"{engine} is on its profile already; nothing to do")
        return
    typer.echo(f"{engine} goes back to its profile within seconds, between two jobs")


def _block(row: IncidentRow) -> tuple[str, Padding, Padding]:
    """One incident for a narrow terminal, where columns would fold words."""
    ready = (
        "not ready again"
        if row.ready_again_seconds is None
        else f"ready after {row.ready_again_seconds:.0f} s"
    )
    return (
        f"{row.id}  {_local(row.at)}  {row.engine_id}  {row.phase}",
        Padding(f"{row.signature}: {row.record['cause']}", (0, 0, 0, 2)),
        Padding(f"{row.record['action'].replace('_', ' ')}; {ready}", (0, 0, 0, 2)),
    )


def _table(rows: list[IncidentRow]) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in ("incident", "time", "engine", "phase", "cause", "done", "ready again"):
        table.add_column(column, overflow="fold", no_wrap=column in ("incident", "time"))
    for row in rows:
        ready = f"{row.ready_again_seconds:.0f} s" if row.ready_again_seconds is not None else "-"
        table.add_row(
            row.id,
            _local(row.at),
            row.engine_id,
            row.phase,
            f"{row.signature}: {row.record['cause']}",
            row.record["action"].replace("_", " "),
            ready,
        )
    return table


def _local(at: datetime) -> str:
    return at.astimezone().strftime("%m-%d %H:%M:%S")


def _console() -> Console:
    # Piped output is for other programs: lines must not be broken at 80 columns there.
    console = Console()
    return console if console.is_terminal else Console(width=1000)


def _reason(url: str, error: DatabaseUnavailable) -> str:
    """Why the database does not answer, on one line: the pool only says how long it has waited."""
    try:
        psycopg.connect(url, connect_timeout=5).close()
    except psycopg.Error as fault:
        return " ".join(str(fault).split())
    return " ".join(str(error.__cause__ or "no answer").split())


def with_database(work: Callable[[Database], Awaitable[Result]]) -> Result:
    """Run `work` on the database of this machine's service. Raises SettingsError, typer.Exit with a line."""
    settings = load()
    # `framekeeper run` brings its own database, whose address nobody has to know.
    directory = (settings.var / "postgres").absolute()
    url = settings.database_url or (database_url(directory) if running_server(directory) else "")
    if not url:
        raise SettingsError(
            "FRAMEKEEPER_DATABASE_URL is not set, and no embedded database runs in "
            f"{directory}: set the URL that gateway and supervisor use."
        )

    # The pool repeats each try's error; one sentence is said below.
    logging.getLogger("psycopg.pool").setLevel(logging.CRITICAL)

    async def run() -> Result:
        database = Database(url, size=1, name="framekeeper-cli")
        await database.open()
        try:
            return await work(database)
        finally:
            await database.close()

    try:
        return asyncio.run(run())
    except DatabaseUnavailable as error:
        reason = _reason(url, error)
        typer.echo(
            f"the database does not answer ({reason}): check that PostgreSQL runs, and "
            "FRAMEKEEPER_DATABASE_URL",
            err=True,
        )
        raise typer.Exit(1) from None
    except FramekeeperError as error:
        typer.echo(f"{error.message} {error.advice}", err=True)
        raise typer.Exit(1) from None
