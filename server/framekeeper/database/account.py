"""The operating system account that PostgreSQL runs as: it refuses to be root."""

from __future__ import annotations

import logging
import os
import pwd
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path

from framekeeper.database.program import run_within

log = logging.getLogger(__name__)

#: Created when root starts an embedded server: no home, no shell, no password.
NAME = "framekeeper"
#: useradd waits for a lock, and may ask a directory service.
USERADD_SECONDS = 60.0


class AccountError(Exception):
    """No account was found that PostgreSQL could run as; the message says what to do."""


@dataclass(frozen=True)
class Account:
    """Ids for a child process; all None means the account of this process."""

    uid: int | None = None
    gid: int | None = None

    @property
    def groups(self) -> list[int] | None:
        """Supplementary groups: none for another account, which must not keep root's."""
        return None if self.uid is None else []

    @classmethod
    def for_directory(cls, directory: Path) -> Account:
        """Ours; for root, whoever owns the database already, or a system account made for it."""
        if os.geteuid() != 0:
            return cls()
        if directory.exists() and (owner := directory.stat()).st_uid != 0:
            return cls(owner.st_uid, owner.st_gid)
        try:
            entry = pwd.getpwnam(NAME)
        except KeyError:
            entry = _create_user()
        return cls(entry.pw_uid, entry.pw_gid)

    def give(self, path: Path) -> None:
        """Make this account the owner of `path`."""
        if self.uid is not None and self.gid is not None:
            os.chown(path, self.uid, self.gid)

    def let_through(self, directory: Path) -> None:
        """Let this account reach `directory`: adds the right to traverse, to those parents that lack it.

        Not the right to list or read: root's home directory becomes 0711, what is in it stays unreadable.
        """
        if self.uid is None:
            return
        for step in (directory, *directory.parents):
            facts = step.stat()
            if facts.st_uid == self.uid or facts.st_mode & stat.S_IXOTH:
                continue
            log.warning("%s gets the permission o+x, so that PostgreSQL's account can pass through it", step)
            step.chmod(stat.S_IMODE(facts.st_mode) | stat.S_IXOTH)

    def let_read(self, tree: Path) -> None:
        """Let this account read and run the programs under `tree`, which a strict umask may forbid."""
        if self.uid is None or tree.stat().st_mode & stat.S_IROTH:
            return
        for step in (tree, *tree.rglob("*")):
            if step.is_symlink():
                continue
            mode = stat.S_IMODE(step.stat().st_mode)
            step.chmod(mode | stat.S_IROTH | (stat.S_IXOTH if mode & stat.S_IXUSR else 0))


def _create_user() -> pwd.struct_passwd:
    advice = "run as an ordinary user, or set FRAMEKEEPER_DATABASE_URL to a PostgreSQL of yours"
    if shutil.which("useradd") is None:
        raise AccountError(
            f"PostgreSQL does not run as root, and there is no useradd to make an account: {advice}"
        )
    options = ("--system", "--no-create-home", "--home-dir", "/nonexistent", "--shell", "/usr/sbin/nologin")
    try:
        status, output = run_within(USERADD_SECONDS, ["useradd", *options, NAME])
        reason = (output.strip() or f"useradd ended with {status}").splitlines()[-1]
    except (TimeoutError, OSError) as error:
        status, reason = -1, str(error)
    if status not in (0, 9):  # 9: someone else made it meanwhile
        raise AccountError(
            f"PostgreSQL does not run as root, and an account could not be made ({reason}): {advice}"
        )
    log.warning("made the system account %s, because PostgreSQL does not run as root", NAME)
    return pwd.getpwnam(NAME)
