"""Rungs of the ladder: the profile that is meant after so many steps down."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from framekeeper.profiles.schema import Profile

# What a rung must not touch: identity, what is locked and promised, and the claims about the profile.
FIXED = frozenset({"name", "extends", "serves", "devices", "fallbacks", "accept_risk", "verified"})


def merge(base: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with the keys of `change`; mappings are merged key by key, everything else is replaced."""
    merged = dict(base)
    for key, value in change.items():
        old = merged.get(key)
        merged[key] = merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged


def at_rung(profile: Profile, rung: int) -> Profile:
    """The profile with the changes of the first `rung` fallbacks applied in order; 0 is the profile itself.

    Raises IndexError when there is no such rung, and pydantic's ValidationError on an illegal change.
    """
    if not 0 <= rung <= len(profile.fallbacks):
        raise IndexError(f"profile {profile.name} has {len(profile.fallbacks)} fallbacks, not {rung}")
    if rung == 0:
        return profile
    data: Mapping[str, Any] = profile.model_dump()
    for step in profile.fallbacks[:rung]:
        data = merge(data, step.change)
    return Profile.model_validate(dict(data))


def rung_name(profile: Profile, rung: int) -> str:
    """Word for states and metrics; rung 0 is `profile`."""
    return "profile" if rung == 0 else profile.fallbacks[rung - 1].name
