"""What this host is like, read once at the supervisor's start."""

from __future__ import annotations

import os
import resource
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

import psutil

from framekeeper.profiles import nvidia
from framekeeper.profiles.facts import HostFacts
from framekeeper.profiles.installed import installed_versions
from framekeeper.settings import Settings

#: The memory limit of this control group, by version 2 and by version 1 (older hosts, and some of WSL2).
#: https://docs.kernel.org/admin-guide/cgroup-v1/memory.html
_CGROUP_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


def gather(settings: Settings, runtime: str | None = None) -> HostFacts:
    """Facts about the host for profile rules and launches; what cannot be read stays unknown.

    With `runtime` also the versions in that engine's environment.
    """
    cards, driver = nvidia.query()
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    shm = Path("/dev/shm")  # noqa: S108
    return HostFacts(
        cards=cards,
        driver=driver,
        installed=installed_versions(engine_environment(settings, runtime)) if runtime else {},
        cpu_count=len(os.sched_getaffinity(0)),
        memory_bytes=_memory(),
        shm_bytes=shutil.disk_usage(shm).total if shm.is_dir() else None,
        locked_bytes=None if locked == resource.RLIM_INFINITY else locked,
        wsl="microsoft" in os.uname().release.lower(),
        inherited=dict(os.environ),
        base_directory=Path.cwd(),
        run_directory=settings.run_directory,
        cache_directory=settings.cache_directory,
        temporary_directory=Path(tempfile.gettempdir()),
    )


def engine_environment(settings: Settings, runtime: str) -> Path:
    """The prefix of a runtime's environment."""
    if settings.engine_python is not None:
        return settings.engine_python.absolute().parent.parent
    return (settings.runtimes / runtime).absolute()


def _memory() -> int | None:
    try:
        machine: int = psutil.virtual_memory().total
    except OSError:  # a /proc that is empty or not for us
        return None
    for path in _CGROUP_LIMITS:
        with suppress(OSError, ValueError):  # no such file, or "max"
            return min(machine, int(path.read_text()))
    return machine
