"""Rules about the CUDA caching allocator, where most advice in circulation makes things worse."""

from __future__ import annotations

from collections.abc import Iterator

from framekeeper.profiles.facts import HostFacts
from framekeeper.profiles.rules.rule import Finding, rule
from framekeeper.profiles.runtimes import RUNTIMES
from framekeeper.profiles.schema import Allocator, Profile

_TORCH = "https://github.com/pytorch/pytorch"
_NOTES = "https://docs.pytorch.org/docs/stable/notes/cuda.html"


@rule(
    "expandable-segments-with-split-size",
    f"{_TORCH}/issues/123548",
    f"{_TORCH}/pull/193400",
    f"{_TORCH}/issues/119452",
    f"{_TORCH}/pull/134338",
)
def expandable_with_split_size(profile: Profile, _facts: HostFacts) -> Iterator[Finding]:
    """expandable_segments and max_split_size_mb never together: freed large blocks are never used again.

    Before torch 2.5 the pair also failed an assert near a full card.
    """
    allocator = profile.allocator
    if allocator.expandable_segments and allocator.max_split_size_mb is not None:
        yield Finding(
            key="allocator.max_split_size_mb",
            value=str(allocator.max_split_size_mb),
            reason="with expandable_segments: true freed blocks above this size are never used again",
            advice="one of the two, or neither",
        )


@rule("expandable-segments-with-gc-threshold", f"{_TORCH}/pull/134338", f"{_TORCH}/issues/119452")
def expandable_with_gc_threshold(profile: Profile, _facts: HostFacts) -> Iterator[Finding]:
    """expandable_segments and garbage_collection_threshold never together: collecting hit an assert."""
    allocator = profile.allocator
    if allocator.expandable_segments and allocator.garbage_collection_threshold is not None:
        yield Finding(
            key="allocator.garbage_collection_threshold",
            value=str(allocator.garbage_collection_threshold),
            reason="collecting does not apply to expandable segments, and before torch 2.5 it hit an assert",
            advice="one of the two, or neither",
        )


@rule("expandable-segments-on-wsl", f"{_TORCH}/issues/166234", f"{_TORCH}/issues/192330")
def expandable_on_wsl(profile: Profile, facts: HostFacts) -> Iterator[Finding]:
    """Under WSL2 expandable segments fail at the first allocation, or at `!handles_.at(i)` on a full card."""
    if profile.allocator.expandable_segments and facts.wsl:
        yield Finding(
            key="allocator.expandable_segments",
            value="true",
            reason="under WSL2 mapping memory fails, and then every allocation until the process ends",
            advice="allocator.expandable_segments: false",
        )


@rule("expandable-segments-with-offload", f"{_TORCH}/issues/166234", f"{_TORCH}/issues/188008")
def expandable_with_offload(profile: Profile, _facts: HostFacts) -> Iterator[Finding]:
    """Offload allocates and frees layers on a nearly full card, where a failed mapping breaks the segment.

    The words are `!handles_.at(i) INTERNAL ASSERT FAILED at …CUDACachingAllocator.cpp`.
    """
    if profile.allocator.expandable_segments and profile.offload != "none":
        yield Finding(
            key="allocator.expandable_segments",
            value="true",
            reason=f"a mapping that fails half-way under offload: {profile.offload} breaks the segment",
            advice="allocator.expandable_segments: false",
        )


@rule("expandable-segments-with-ipc", f"{_TORCH}/issues/165685", f"{_TORCH}/issues/188008")
def expandable_with_ipc(profile: Profile, _facts: HostFacts) -> Iterator[Finding]:
    """Expandable segments are handed to other processes by pidfd_getfd, which containers forbid."""
    if profile.allocator.expandable_segments and profile.executor == "multiprocess":
        yield Finding(
            key="allocator.expandable_segments",
            value="true",
            reason="CUDA IPC between worker processes then needs pidfd_getfd, which containers forbid",
            advice="allocator.expandable_segments: false, or executor: in_process",
        )


@rule("split-size-too-small", _NOTES)
def split_size_too_small(profile: Profile, _facts: HostFacts) -> Iterator[Finding]:
    """max_split_size_mb and max_non_split_rounding_mb must be more than 20; torch raises at the first use."""
    for key in ("max_split_size_mb", "max_non_split_rounding_mb"):
        value = getattr(profile.allocator, key)
        if value is not None and value <= 20:
            yield Finding(
                key=f"allocator.{key}",
                value=str(value),
                reason="torch refuses 20 MiB and less when the first tensor is allocated",
                advice=f"allocator.{key}: 21 or more, or leave it out",
            )


@rule("allocator-key-unknown", f"{_TORCH}/pull/136174")
def allocator_key_unknown(profile: Profile, _facts: HostFacts) -> Iterator[Finding]:
    """A key that the runtime's torch does not know is an error when the first tensor is allocated."""
    runtime = RUNTIMES.get(profile.runtime)
    for key in changed(profile.allocator):
        if runtime and key not in runtime.allocator_keys:
            yield Finding(
                key=f"allocator.{key}",
                value=str(getattr(profile.allocator, key)),
                reason=f"torch {runtime.torch} does not know this key and refuses to start with it",
                advice=f"leave allocator.{key} out",
            )


@rule("allocator-async-ignores", _NOTES)
def allocator_async_ignores(profile: Profile, _facts: HostFacts) -> Iterator[Finding]:
    """backend: cudaMallocAsync ignores every option of the native allocator."""
    others = [key for key in changed(profile.allocator) if key != "backend"]
    if profile.allocator.backend == "cudaMallocAsync":
        for key in others:
            yield Finding(
                key=f"allocator.{key}",
                value=str(getattr(profile.allocator, key)),
                reason="the driver's own allocator takes no such option",
                advice=f"leave allocator.{key} out, or allocator.backend: native",
            )


@rule("allocator-on-cpu", _NOTES, severity="warn")
def allocator_on_cpu(profile: Profile, _facts: HostFacts) -> Iterator[Finding]:
    """On a CPU nothing reads the allocator's settings."""
    for key in changed(profile.allocator):
        if profile.devices.kind == "cpu":
            yield Finding(
                key=f"allocator.{key}",
                value=str(getattr(profile.allocator, key)),
                reason="does nothing on a CPU",
                advice="leave the section out",
            )


def changed(allocator: Allocator) -> list[str]:
    """Keys whose value is not the allocator's own default."""
    default = Allocator()
    return [key for key in Allocator.model_fields if getattr(allocator, key) != getattr(default, key)]


RULES = (
    expandable_with_split_size,
    expandable_with_gc_threshold,
    expandable_on_wsl,
    expandable_with_offload,
    expandable_with_ipc,
    split_size_too_small,
    allocator_key_unknown,
    allocator_async_ignores,
    allocator_on_cpu,
)
