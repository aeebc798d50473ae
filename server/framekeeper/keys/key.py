"""One API key: its secret text, what is stored of it, and what it is good for."""

from __future__ import annotations

import hashlib
import re
import secrets
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

import msgspec

#: 256 random bits in base64url behind a prefix that secret scanners can look for.
SECRET = re.compile(r"fk_[A-Za-z0-9_-]{43}", re.ASCII)
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}", re.ASCII)


class Scope(StrEnum):
    """What a key is good for."""

    #: Make videos, cancel and delete one's own, see how one is; models and queue.
    SUBMIT = "submit"
    #: List and fetch one's own videos, look at models, queue and engines.
    READ = "read"
    #: All of it, for everybody's videos, and incidents.
    ADMIN = "admin"


class Highest(StrEnum):
    """The highest priority that a key's jobs may have."""

    LOW = "low"
    NORMAL = "normal"
    HIGH = "high"


class KeyLimits(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a key may use; None means what the settings say, 0 means any number.

    `jobs` are unfinished ones, `priority` is the highest that its jobs may have (None: normal),
    `retention_…` is what is kept of its finished videos.
    """

    jobs: int | None = None
    priority: Highest | None = None
    jobs_per_minute: float | None = None
    retention_seconds: float | None = None
    retention_videos: int | None = None
    retention_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One row of `api_keys`. The secret itself is nowhere: only who was given it has it."""

    id: str
    name: str
    hash: str
    scopes: frozenset[Scope]
    limits: KeyLimits
    created_at: datetime
    last_used_at: datetime | None
    revoked_at: datetime | None

    @classmethod
    def from_row(cls, row: dict[str, Any]) -> Key:
        """Build from a row of `SELECT {COLUMNS}`. What a later version wrote beside is ignored."""
        scopes = frozenset(Scope(each) for each in row["scopes"] if each in set(Scope))
        return cls(**{**row, "scopes": scopes, "limits": msgspec.convert(row["limits"], KeyLimits)})


#: A key without limits of its own.
NO_LIMITS = KeyLimits()
COLUMNS = ", ".join(Key.__dataclass_fields__)


def new_secret() -> str:
    """A fresh secret, to be shown once."""
    return "fk_" + secrets.token_urlsafe(32)


def digest(secret: str) -> str:
    """What is stored of a secret: SHA-256 in hex.

    A slow password hash would protect nothing here: it slows down guessing, and 256 random bits cannot be
    guessed; it would cost each request its tens of milliseconds.
    """
    return hashlib.sha256(secret.encode()).hexdigest()
