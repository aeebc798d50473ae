"""Who calls: the API key of a request, where keys are used (FRAMEKEEPER_AUTH=on).

Each route under /v1 takes one of `ReaderOf`, `ViewerOf`, `SubmitterOf` and `AdminOf`; a test holds that.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Annotated

import structlog
from fastapi import Depends, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer, SecurityScopes

from framekeeper.database.pool import Database
from framekeeper.errors import InvalidKey, MissingKey, PriorityNotAllowed, ScopeMissing
from framekeeper.gateway.state import DatabaseOf, SettingsOf
from framekeeper.jobs.video import Priority
from framekeeper.keys import rows
from framekeeper.keys.key import NO_LIMITS, SECRET, Highest, Key, KeyLimits, Scope, digest

#: A key that was revoked is taken for so long after, by a gateway that has just used it.
REMEMBERED_SECONDS = 5.0
REMEMBERED_KEYS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """`key_id` is None where no keys are used: then everybody may do everything."""

    key_id: str | None = None
    scopes: frozenset[Scope] = frozenset(Scope)
    limits: KeyLimits = NO_LIMITS

    @property
    def sees(self) -> str | None:
        """The owner whose jobs this caller may know of; None means all."""
        return None if Scope.ADMIN in self.scopes else self.key_id

    def may(self, scope: str) -> bool:
        """Whether the key is good for this; an admin's is good for everything."""
        return scope in self.scopes or Scope.ADMIN in self.scopes


def granted(caller: Caller, wished: Priority | None) -> Priority:
    """The priority of a caller's job; without a wish normal, or the key's highest where that is lower.

    Raises PriorityNotAllowed.
    """
    highest = Priority.HIGH
    if caller.key_id is not None and Scope.ADMIN not in caller.scopes:
        highest = Priority[(caller.limits.priority or Highest.NORMAL).name]
    if wished is None:
        return min(Priority.NORMAL, highest)
    if wished > highest:
        name, most = wished.name.lower(), highest.name.lower()
        raise PriorityNotAllowed(
            f"priority={name}: this key may use {most} at most; leave priority out, or ask for a key "
            f"made with `framekeeper keys create NAME --priority {name}`.",
            param="priority",
        )
    return wished


class KnownKeys:
    """The keys used lately, by the digest of their secret, so that a poll costs no query more.

    Unknown keys are not remembered: whoever tries many would push out the good ones.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[str, tuple[float, Caller]] = OrderedDict()

    async def caller(self, database: Database, secret: str) -> Caller | None:
        """Who has this key; None where it is unknown or revoked. Raises DatabaseUnavailable."""
        name = digest(secret)
        until, caller = self._known.get(name, (0.0, None))
        if caller is not None and time.monotonic() < until:
            self._known.move_to_end(name)
            return caller
        self._known.pop(name, None)
        key = await rows.valid(database, secret)
        if key is None:
            return None
        caller = _caller_of(key)
        self._known[name] = (time.monotonic() + REMEMBERED_SECONDS, caller)
        while len(self._known) > REMEMBERED_KEYS:
            self._known.popitem(last=False)
        return caller


def _caller_of(key: Key) -> Caller:
    return Caller(key_id=key.id, scopes=key.scopes, limits=key.limits)


_bearer = HTTPBearer(auto_error=False, description="An API key, fk_…; needed where FRAMEKEEPER_AUTH=on.")


async def _caller(
    request: Request,
    needed: SecurityScopes,
    given: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)],
    settings: SettingsOf,
    database: DatabaseOf,
) -> Caller:
    if settings.auth == "off":
        return Caller()
    if given is None:
        raise MissingKey
    known: KnownKeys = request.app.state.known_keys
    caller = await known.caller(database, given.credentials) if SECRET.fullmatch(given.credentials) else None
    if caller is None:
        raise InvalidKey
    structlog.contextvars.bind_contextvars(key=caller.key_id)
    if needed.scopes and not any(caller.may(scope) for scope in needed.scopes):
        has = ", ".join(sorted(caller.scopes)) or "none"
        wanted = " or ".join(f"`{scope}`" for scope in needed.scopes)
        raise ScopeMissing(f"This needs a key with the scope {wanted}; yours has: {has}.")
    return caller


ReaderOf = Annotated[Caller, Security(_caller, scopes=[Scope.READ.value])]
#: A submitter, too, has to see what can be made, how long the line is, and how a job is whose id it has.
ViewerOf = Annotated[Caller, Security(_caller, scopes=[Scope.READ.value, Scope.SUBMIT.value])]
SubmitterOf = Annotated[Caller, Security(_caller, scopes=[Scope.SUBMIT.value])]
AdminOf = Annotated[Caller, Security(_caller, scopes=[Scope.ADMIN.value])]
#: Whoever has a valid key.
CallerOf = Annotated[Caller, Security(_caller, scopes=[])]
