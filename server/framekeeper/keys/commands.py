"""`framekeeper keys`: make, list and revoke API keys."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from framekeeper.database.pool import Database
from framekeeper.diagnosis.commands import with_database
from framekeeper.keys import rows
from framekeeper.keys.key import NAME, Highest, Key, KeyLimits, Scope

keys_app = typer.Typer(help="API keys (FRAMEKEEPER_AUTH=on asks for them).", no_args_is_help=True)


@keys_app.command("create")
def create(
    name: Annotated[str, typer.Argument(help="Whose key it is; unique, also among revoked ones.")],
    scope: Annotated[
        list[Scope] | None, typer.Option(help="What it is good for; may be repeated. Default: submit, read.")
    ] = None,
    *,
    jobs: Annotated[int | None, typer.Option(min=0, help="Most unfinished jobs; 0: any.")] = None,
    priority: Annotated[
        Highest | None, typer.Option(help="Highest priority of its jobs; default: normal, an admin's: high.")
    ] = None,
    jobs_per_minute: Annotated[float | None, typer.Option(min=0, help="Most jobs a minute; 0: any.")] = None,
    retention_days: Annotated[float | None, typer.Option(min=0, help="How long videos are kept.")] = None,
    retention_videos: Annotated[int | None, typer.Option(min=0, help="How many videos are kept.")] = None,
    retention_bytes: Annotated[int | None, typer.Option(min=0, help="How many bytes are kept.")] = None,
) -> None:
    """Make a key and print it; it is stored as a hash only, so this is the one time to see it."""
    if not NAME.fullmatch(name):
        typer.echo(
            f"NAME={name!r}: at most 64 letters, digits and . _ @ -, beginning with a letter or digit",
            err=True,
        )
        raise typer.Exit(2)
    limits = KeyLimits(
        jobs=jobs,
        priority=priority,
        jobs_per_minute=jobs_per_minute,
        retention_seconds=None if retention_days is None else retention_days * 86400,
        retention_videos=retention_videos,
        retention_bytes=retention_bytes,
    )
    scopes = scope or [Scope.SUBMIT, Scope.READ]
    try:
        key, secret = with_database(lambda database: rows.create(database, name, scopes, limits))
    except rows.NameTaken:
        typer.echo(f"NAME={name!r}: there is a key of this name (perhaps revoked); take another", err=True)
        raise typer.Exit(2) from None
    typer.echo(f"{key.id}: {', '.join(sorted(key.scopes))}; keep this, it is not shown again:", err=True)
    typer.echo(secret)


@keys_app.command("list")
def list_keys() -> None:
    """List keys and how many unfinished jobs each has; their secrets are not stored."""
    table = Table(box=None, pad_edge=False)
    for column in ("id", "name", "scopes", "limits", "unfinished", "made", "last used", "state"):
        table.add_column(column, overflow="fold", no_wrap=column == "id")

    async def both(database: Database) -> tuple[list[Key], dict[str, int]]:
        return await rows.all_keys(database), await rows.unfinished(database)

    keys, jobs = with_database(both)
    for key in keys:
        table.add_row(*_cells(key, jobs.get(key.id, 0)))
    Console(width=None if Console().is_terminal else 160).print(table)


@keys_app.command("revoke")
def revoke(name: Annotated[str, typer.Argument(help="Name or id of the key.")]) -> None:
    """End a key. Gateways notice within 5 seconds; its jobs and videos stay."""
    if with_database(lambda database: rows.revoke(database, name)) is None:
        typer.echo(f"there is no key {name!r}; see `framekeeper keys list`", err=True)
        raise typer.Exit(2)
    typer.echo(f"{name} is revoked; gateways refuse it within 5 seconds")


def _cells(key: Key, unfinished: int) -> list[str]:
    limits = {
        field: value if isinstance(value, str) else f"{value:g}"
        for field in key.limits.__struct_fields__
        if (value := getattr(key.limits, field)) is not None
    }
    return [
        key.id,
        key.name,
        ", ".join(sorted(key.scopes)),
        ", ".join(f"{field}={value}" for field, value in limits.items()),
        str(unfinished),
        f"{key.created_at:%Y-%m-%d %H:%M}",
        f"{key.last_used_at:%Y-%m-%d %H:%M}" if key.last_used_at else "never",
        f"revoked {key.revoked_at:%Y-%m-%d}" if key.revoked_at else "valid",
    ]
