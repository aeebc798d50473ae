"""What is around the process: memory, shared memory, limits, disks, clock, Docker."""

from __future__ import annotations

import re
from collections.abc import Iterator

from framekeeper.doctor.finding import Finding, Severity
from framekeeper.doctor.readings import Disk, Readings, first_line, gib
from framekeeper.profiles.memory import loaded_experts, transformer_bytes
from framekeeper.profiles.runtimes import version_tuple
from framekeeper.profiles.schema import Profile
from framekeeper.profiles.wan import architecture

_GIB = 1024**3
_MIB = 1024**2
_LEAST_FILES = 4096
_LEAST_SHM = 64 * _MIB
_FEW_GIB = 5 * _GIB
_LEAST_TOOLKIT = (1, 17, 8)
# The day before this was written: no host that runs it can be older.
_WRITTEN = 1_796_083_200


def container_findings(profile: Profile, readings: Readings, *, least_media: int) -> list[Finding]:
    """All about the container or the host as one."""
    found = [
        *_memory(profile, readings),
        *_shared_memory(readings),
        *_limits(readings),
        *_clock(readings),
        *_docker(readings),
    ]
    if readings.media is not None:
        found += _space("media", readings.media, least_media, "warn")
    if readings.caches is not None:
        found += _space("caches", readings.caches, _GIB, "warn" if profile.compile == "off" else "fatal")
    return found


def _memory(profile: Profile, readings: Readings) -> Iterator[Finding]:
    limits = [each for each in (readings.memory_total, readings.memory_limit) if each is not None]
    if not limits:
        return
    memory = min(limits)
    limited = readings.memory_limit is not None and memory == readings.memory_limit
    whose = "the container's limit" if limited else "this host's memory"
    model = architecture(profile)
    if model is None:
        yield Finding(check="memory", severity="ok", seen=f"{whose} is {gib(memory)}")
        return
    # Whatever is offloaded: while both experts and the encoder are read, their files fill the page cache.
    checkpoint = loaded_experts(profile, model) * transformer_bytes(profile, model) + 2 * model.text_encoder
    if memory < checkpoint:
        yield Finding(
            check="memory",
            severity="warn",
            seen=f"{whose} is {gib(memory)}, and experts and text encoder have {gib(checkpoint)}",
            why="the load is slow where the files do not stay in memory, and whatever is offloaded beside it "
            "ends the worker with SIGKILL, or takes the host down",
            advice=f"a limit of at least {gib(checkpoint)}, more with offload",
            evidence="https://github.com/kijai/ComfyUI-WanVideoWrapper/issues/1044",
        )
    else:
        yield Finding(
            check="memory",
            severity="ok",
            seen=f"{whose} is {gib(memory)}; experts and text encoder have {gib(checkpoint)}",
        )


def _shared_memory(readings: Readings) -> Iterator[Finding]:
    if readings.shm_total is None or readings.shm_free is None:
        return
    seen = f"shared memory has {gib(readings.shm_free)} of {gib(readings.shm_total)} free"
    if readings.shm_free >= _LEAST_SHM or readings.shm_total <= _LEAST_SHM:
        yield Finding(check="shm", severity="ok", seen=seen)
        return
    yield Finding(
        check="shm",
        severity="warn",
        seen=seen,
        why="a full one ends processes with `Bus error`; ends of killed workers stay in it",
        advice="remove what no process uses any more, or make a new container",
        evidence="https://github.com/vllm-project/vllm/issues/789",
    )


def _limits(readings: Readings) -> Iterator[Finding]:
    if readings.open_files is not None and readings.open_files < _LEAST_FILES:
        yield Finding(
            check="open-files",
            severity="warn",
            seen=f"a process may open {readings.open_files} files (ulimit -n)",
            why="connections, shards and libraries count; it ends with `Too many open files` under load",
            advice=f"nofile: {_LEAST_FILES * 16} in the container's ulimits",
        )
    else:
        files = readings.open_files or "any number of"
        yield Finding(check="open-files", severity="ok", seen=f"a process may open {files} files")


def _clock(readings: Readings) -> Iterator[Finding]:
    if readings.now < _WRITTEN:
        yield Finding(
            check="clock",
            severity="fatal",
            seen="the clock is before the day this version was written",
            why="certificates and signed URLs are refused, and jobs look stale to other hosts",
            advice="set the clock, and keep it with NTP",
        )
    elif readings.clock_synchronized is False:
        yield Finding(
            check="clock",
            severity="warn",
            seen="the clock is not synchronized (timedatectl)",
            why="with several hosts, times of incidents and signed URLs disagree",
            advice="timedatectl set-ntp true on the host",
        )


def _docker(readings: Readings) -> Iterator[Finding]:
    if readings.docker.status == 0:
        yield Finding(check="docker", severity="ok", seen=f"Docker {first_line(readings.docker.text)}")
    yield from _toolkit(readings)
    if readings.docker_desktop or readings.wsl:
        where = "Docker Desktop" if readings.docker_desktop else "WSL2"
        yield Finding(
            check="wsl",
            severity="note",
            seen=f"this is {where} (kernel {readings.kernel})",
            why="little memory can be pinned, the desktop holds part of the card, expandable segments break",
            advice="a profile for it, such as wsl2-24g; its memory is set in .wslconfig",
            evidence="https://github.com/microsoft/WSL/issues/14078",
        )


def _toolkit(readings: Readings) -> Iterator[Finding]:
    match = re.search(r"version\s+(\d+(?:\.\d+)+)", readings.toolkit.text)
    if readings.toolkit.status != 0 or match is None:
        return
    if version_tuple(match[1]) >= _LEAST_TOOLKIT:
        yield Finding(check="container-toolkit", severity="ok", seen=first_line(readings.toolkit.text))
        return
    yield Finding(
        check="container-toolkit",
        severity="warn",
        seen=f"nvidia-container-toolkit {match[1]} is older than {'.'.join(map(str, _LEAST_TOOLKIT))}",
        why="an image can take over the host through it (CVE-2025-23266), and older ones lose cards",
        advice="a newer nvidia-container-toolkit on the host, then nvidia-ctk cdi generate",
        evidence="https://nvd.nist.gov/vuln/detail/CVE-2025-23266",
    )


def _space(name: str, disk: Disk, least: int, full: Severity) -> Iterator[Finding]:
    check = f"disk-{name}"
    variable = "FRAMEKEEPER_MEDIA" if name == "media" else "FRAMEKEEPER_VAR"
    if not disk.writable:
        yield Finding(
            check=check,
            severity="fatal",
            seen=f"{disk.path} cannot be written by this user",
            why="videos and caches are written there"
            if name == "media"
            else "every compilation is written there",
            advice=f"give the directory to the user of the container, or set {variable}",
            evidence="https://github.com/odysseus-dev/odysseus/issues/6157",
        )
    elif disk.free < least:
        yield Finding(
            check=check,
            severity=full,
            seen=f"{disk.path} has {disk.free / _MIB:,.0f} MiB free, and {least / _MIB:,.0f} are needed",
            why="jobs are refused, and an engine that compiles ends with `No space left on device`",
            advice=f"remove old videos or caches (framekeeper doctor --clear-caches), or set {variable}",
            evidence="https://github.com/vllm-project/vllm-omni/issues/5422",
        )
    else:
        few = disk.free < _FEW_GIB
        yield Finding(
            check=check,
            severity="warn" if few else "ok",
            seen=f"{disk.path} has {gib(disk.free)} free",
            why="a few hundred videos of 720p fill it" if few else "",
            advice=f"a larger disk, or set {variable}" if few else "",
        )
