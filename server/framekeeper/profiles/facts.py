"""What is known about the host. Everything may be unknown: profiles are also checked elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Card:
    """One CUDA device as its driver names it. `capability` is such as "9.0", memory in bytes."""

    uuid: str
    name: str
    capability: str
    memory_bytes: int


@dataclass(frozen=True, kw_only=True)
class HostFacts:
    """Facts about one host; None means not known, and a rule that needs it then says nothing.

    Sizes are bytes. `locked_bytes` is the limit of page-locked memory (RLIMIT_MEMLOCK), `memory_bytes` the
    container's limit or the machine's memory, whichever is less. `host_ipc` says that the IPC namespace is
    shared with the host; no host tells it of itself, since a virtual machine that was made from an image has
    a container's marks and the first namespace, too. `installed` holds versions of the engine's packages by
    distribution name. `inherited` is the environment of the process that asks; only allow-listed names are
    passed on.
    """

    cards: tuple[Card, ...] | None = None
    cpu_count: int = 1
    memory_bytes: int | None = None
    shm_bytes: int | None = None
    locked_bytes: int | None = None
    driver: str | None = None
    wsl: bool | None = None
    host_ipc: bool | None = None
    installed: Mapping[str, str] = field(default_factory=dict)
    inherited: Mapping[str, str] = field(default_factory=dict)
    base_directory: Path = Path("/srv/framekeeper")
    run_directory: Path = Path("/srv/framekeeper/var/run")
    cache_directory: Path = Path("/srv/framekeeper/var/cache")
    temporary_directory: Path = Path("/tmp")  # noqa: S108  a default of pure data; the directories below are 0700


UNKNOWN = HostFacts()
