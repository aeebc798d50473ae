"""Who calls: the API key of a request, where keys are used."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from fastapi import Depends, Request


class Scope(StrEnum):
    """What a key is good for."""

    SUBMIT = "submit"
    READ = "read"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """`key_id` is None where no keys are used: then everybody may do everything."""

    key_id: str | None = None
    scopes: frozenset[Scope] = frozenset(Scope)

    @property
    def sees(self) -> str | None:
        """The owner whose jobs this caller may know of; None means all."""
        return None if Scope.ADMIN in self.scopes else self.key_id


async def _caller(request: Request) -> Caller:
    return Caller()


CallerOf = Annotated[Caller, Depends(_caller)]
