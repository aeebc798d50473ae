"""Which rung of a profile's ladder makes a change that helps."""

from __future__ import annotations

from collections.abc import Callable, Collection

from framekeeper.diagnosis.signature import RungKind
from framekeeper.jobs.shape import tokens
from framekeeper.profiles.fallbacks import at_rung
from framekeeper.profiles.schema import Profile, parse_size

_OFFLOADED = {"none": 0, "model": 1, "layerwise": 2}


def admitted_tokens(profile: Profile) -> int:
    """Tokens of the largest video that the profile admits."""
    width, height = parse_size(profile.admits.size)
    return tokens(width, height, profile.admits.num_frames)


#: Whether going from the first profile to the second makes the change.
HELPS: dict[RungKind, Callable[[Profile, Profile], bool]] = {
    "compile_off": lambda now, then: now.compile != "off" and then.compile == "off",
    "quantization_off": lambda now, then: now.quantization != "none" and then.quantization == "none",
    "expandable_segments_off": lambda now, then: (
        now.allocator.expandable_segments and not then.allocator.expandable_segments
    ),
    "prefetch_sync": lambda now, then: (
        now.offload == "layerwise"
        and now.offload_prefetch == "async"
        and (then.offload_prefetch == "sync" or then.offload != "layerwise")
    ),
    "unpinned": lambda now, then: (
        now.offload != "none"
        and now.offload_pin_memory
        and (not then.offload_pin_memory or then.offload == "none")
    ),
    "offload_off": lambda now, then: now.offload != "none" and then.offload == "none",
    "offload": lambda now, then: _OFFLOADED[then.offload] > _OFFLOADED[now.offload],
    "in_process": lambda now, then: now.executor != "in_process" and then.executor == "in_process",
    "attention_sdpa": lambda now, then: now.attention != "torch_sdpa" and then.attention == "torch_sdpa",
    "cache_off": lambda now, then: now.cache != "none" and then.cache == "none",
    "smaller_shape": lambda now, then: admitted_tokens(then) < admitted_tokens(now),
    "other_backend": lambda now, then: now.backend != then.backend,
}


def helpful_rung(profile: Profile, rung: int, kinds: Collection[RungKind]) -> int | None:
    """The first rung below `rung` that makes any of these changes, or None. `profile` is that of rung 0."""
    now = at_rung(profile, rung)
    for lower in range(rung + 1, len(profile.fallbacks) + 1):
        then = at_rung(profile, lower)
        if any(HELPS[kind](now, then) for kind in kinds):
            return lower
    return None


def next_rung(profile: Profile, rung: int, kinds: Collection[RungKind]) -> int | None:
    """The helpful rung, or else the one just below; None on the lowest."""
    helpful = helpful_rung(profile, rung, kinds)
    if helpful is not None:
        return helpful
    return rung + 1 if rung < len(profile.fallbacks) else None
