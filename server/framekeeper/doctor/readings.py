"""What was read from a host, as data: gathered once, judged afterwards, and kept in tests for sick hosts.

Answers of programs are kept as their text, so that what a driver really said can be recorded and judged again
(`framekeeper doctor --readings FILE`). Nothing in it is secret: of the environment only names and values that
begin as the engine's libraries name theirs are kept.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from framekeeper.profiles.facts import Card, HostFacts

QUERY = (
    "uuid", "name", "compute_cap", "memory.total", "memory.used", "driver_version",
    "persistence_mode", "ecc.errors.uncorrected.volatile.total", "mig.mode.current",
)  # fmt: skip
_MIB = 1024**2


class _Reading(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Answer(_Reading):
    """What a program said. `status` is None where there is no such program, -1 where it did not end."""

    status: int | None = None
    text: str = ""


class Disk(_Reading):
    """Space where `path`, or the nearest directory above it, lies."""

    path: Path
    free: int
    writable: bool
    owner: int | None = None
    mode: int | None = None


class Probed(_Reading):
    """One answer of one probe. `part` is what was tried, "end" how its process ended where it failed.

    `figures` are bytes, seconds and errors. What was not `tried` says why in `seen`.
    """

    probe: str
    part: str
    ok: bool
    seen: str
    figures: dict[str, float] = {}
    tried: bool = True


class Readings(_Reading):
    """One host at one time. `None` and empty texts are what could not be read; sizes are bytes.

    `damaged` are sentences about files of the compile caches.
    """

    cards: Answer = Answer()
    summary: Answer = Answer()
    processes: Answer = Answer()
    fabric: tuple[str, ...] = ()
    kernel_log: str | None = None
    kernel: str = ""
    container: bool = False
    docker: Answer = Answer()
    toolkit: Answer = Answer()
    memory_total: int | None = None
    memory_limit: int | None = None
    memory_available: int | None = None
    shm_total: int | None = None
    shm_free: int | None = None
    locked: int | None = None
    open_files: int | None = None
    cpu_count: int = 1
    media: Disk | None = None
    caches: Disk | None = None
    damaged: tuple[str, ...] = ()
    now: float = 0.0
    clock_synchronized: bool | None = None
    compiler: str | None = None
    python_headers: bool | None = None
    installed: dict[str, str] = {}
    environment: dict[str, str] = {}
    user: int = 0
    probes: tuple[Probed, ...] = ()

    @property
    def wsl(self) -> bool:
        """Whether this is Linux under Windows."""
        return "microsoft" in self.kernel.lower()

    @property
    def docker_desktop(self) -> bool:
        """Whether containers run in Docker Desktop's own virtual machine."""
        return "docker desktop" in self.docker.text.lower() or "linuxkit" in self.kernel

    def rows(self) -> list[dict[str, str]]:
        """A record for each line of the cards' answer that has the right number of fields."""
        lines = [[field.strip() for field in line.split(",")] for line in self.cards.text.splitlines()]
        return [dict(zip(QUERY, line, strict=True)) for line in lines if len(line) == len(QUERY)]

    def present(self) -> tuple[Card, ...]:
        """The cards that answer."""
        return tuple(
            Card(
                uuid=row["uuid"],
                name=row["name"],
                capability=row["compute_cap"],
                memory_bytes=int(row["memory.total"]) * _MIB,
            )
            for row in self.rows()
            if row["memory.total"].isdigit() and re.fullmatch(r"\d+\.\d", row["compute_cap"])
        )

    def facts(self) -> HostFacts:
        """The same for the profiles' rules."""
        limits = [size for size in (self.memory_total, self.memory_limit) if size is not None]
        rows = self.rows()
        return HostFacts(
            cards=self.present() if self.cards.status == 0 else None,
            cpu_count=self.cpu_count,
            memory_bytes=min(limits, default=None),
            shm_bytes=self.shm_total,
            locked_bytes=self.locked,
            driver=rows[0]["driver_version"] if rows else None,
            wsl=self.wsl,
            installed=self.installed,
            inherited=self.environment,
        )


def first_line(text: str) -> str:
    """The first line that says something."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "nothing")


def gib(size: int) -> str:
    """Such as "12.0 GiB", and "30 MiB" below a tenth of one."""
    return f"{size / 1024**3:.1f} GiB" if size >= 1024**3 / 10 or not size else f"{size / 1024**2:.0f} MiB"


def joined(parts: Sequence[str], most: int = 4) -> str:
    """A list for a sentence, cut short."""
    return ", ".join(parts[:most]) + (f" and {len(parts) - most} more" if len(parts) > most else "")
