"""What is checked before anything starts, each fault one line that says what to set."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from framekeeper.settings import Settings

#: Logs, sockets, the small checkpoint and PostgreSQL's write-ahead log, beside the videos.
FREE_BYTES_NEEDED = 512 * 1024 * 1024


class CannotRun(Exception):
    """This machine or configuration cannot run it; the message is for a person. Exit status 2."""


def base_url(settings: Settings) -> str:
    """Where a browser on this machine finds the gateway."""
    everywhere = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  (not bound, translated)
    host = everywhere.get(settings.host, settings.host)
    return f"http://{f'[{host}]' if ':' in host else host}:{settings.port}"


@contextmanager
def only_one(settings: Settings) -> Iterator[None]:
    """Hold `var` for this launcher. Raises CannotRun when another one runs on it, or it cannot be written."""
    try:
        settings.run_directory.mkdir(parents=True, exist_ok=True)
        lock = os.open(settings.run_directory / "launcher.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise CannotRun(_unwritable("FRAMEKEEPER_VAR", settings.var, error)) from None
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(lock, 200, 0).decode(errors="replace").strip() or "another process"
            raise CannotRun(
                f"Framekeeper already runs on {settings.var} ({holder}): use it, stop it, or set "
                f"FRAMEKEEPER_VAR, FRAMEKEEPER_PORT and FRAMEKEEPER_SUPERVISOR_PORT to run another"
            ) from None
        os.ftruncate(lock, 0)
        with suppress(OSError):  # on a full disk, which `check_space` tells
            os.pwrite(lock, f"process {os.getpid()}, {base_url(settings)}\n".encode(), 0)
        try:
            yield
        finally:
            os.ftruncate(lock, 0)
    finally:
        os.close(lock)


def check_media(settings: Settings) -> None:
    """Make the directory of the videos. Raises CannotRun when nothing can be written there."""
    directory = settings.media_directory
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if not os.access(directory, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(directory))
    except OSError as error:
        name = "FRAMEKEEPER_MEDIA" if settings.media else "FRAMEKEEPER_VAR"
        raise CannotRun(_unwritable(name, settings.media or settings.var, error)) from None


def _unwritable(name: str, value: Path, error: OSError) -> str:
    remedy = "free some space" if error.errno == errno.ENOSPC else "change its owner"
    return (
        f"{name}={value}: {error.filename or value} cannot be written ({error.strerror}): {remedy}, or set "
        f"{name} to a directory that can"
    )


def check_ports(settings: Settings) -> None:
    """Raise CannotRun for every port that cannot be listened on."""
    if settings.port == settings.supervisor_port:
        raise CannotRun(
            f"FRAMEKEEPER_PORT and FRAMEKEEPER_SUPERVISOR_PORT are both {settings.port}: change one"
        )
    faults = [
        fault
        for prefix, host, port in (
            ("FRAMEKEEPER_", settings.host, settings.port),
            ("FRAMEKEEPER_SUPERVISOR_", settings.supervisor_host, settings.supervisor_port),
        )
        if (fault := _port_fault(prefix, host, port))
    ]
    if faults:
        raise CannotRun("\n".join(faults))


def gateway_port_fault(settings: Settings) -> str | None:
    """What is wrong with the gateway's port, or None."""
    prefixes = ("FRAMEKEEPER_", "FRAMEKEEPER_OPERATION_")
    for prefix, (host, port) in zip(prefixes, settings.gateway_addresses, strict=False):
        if fault := _port_fault(prefix, host, port):
            return fault
    return None


def check_space(settings: Settings) -> None:
    """Raise CannotRun when the disk of `var` or `media` is too full to start."""
    needs = {settings.var: FREE_BYTES_NEEDED, settings.media_directory: settings.min_free_bytes}
    names = {settings.var: "FRAMEKEEPER_VAR", settings.media_directory: "FRAMEKEEPER_MEDIA"}
    for directory, needed in needs.items():
        free = shutil.disk_usage(_existing(directory)).free
        if free < needed:
            raise CannotRun(
                f"{names[directory]}={directory}: {free >> 20} MiB are free there, {needed >> 20} needed: "
                f"free some, or set it to a directory on another disk"
            )


def _existing(directory: Path) -> Path:
    directory = directory.absolute()
    return next(step for step in (directory, *directory.parents) if step.exists())


def _port_fault(prefix: str, host: str, port: int) -> str | None:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        return f"{prefix}HOST={host!r} is not an address of this machine ({error.strerror}): set 127.0.0.1"
    family, kind, protocol, _, address = found[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return (
                    f"{prefix}PORT={port}: port {port} on {host} is in use: stop who uses it, or set another"
                )
            if error.errno == errno.EACCES:
                return f"{prefix}PORT={port}: this account may not listen on port {port}: set one above 1023"
            return f"{prefix}HOST={host}: cannot listen there ({error.strerror}): set 127.0.0.1"
    return None
