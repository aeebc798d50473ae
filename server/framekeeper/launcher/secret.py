"""Passwords in files, made once: what programs in containers share without a person writing it down."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

#: Bytes of randomness; 43 letters, digits, - and _ as text.
SIZE = 32


def make(path: Path) -> bool:
    """Write a random password to `path`, for its owner and group to read; False when there is one already.

    Whole or not at all, also when two do it at once. Raises OSError when the directory cannot be written.
    """
    if path.exists():
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o440)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_urlsafe(SIZE))
            file.flush()
            os.fsync(file.fileno())
        draft.chmod(0o440)  # whatever the umask says
        os.link(draft, path)
    except FileExistsError:
        return False
    finally:
        draft.unlink()
    return True
