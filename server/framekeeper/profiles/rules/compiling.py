"""Rules about torch.compile; those about offload and quantisation are with their nouns."""

from __future__ import annotations

from collections.abc import Iterator

from framekeeper.profiles.facts import HostFacts
from framekeeper.profiles.rules.rule import Finding, omni_source, rule
from framekeeper.profiles.schema import Profile

_OMNI = "https://github.com/vllm-project/vllm-omni"
_REFUSAL = omni_source("diffusion/data.py")


@rule("full-compile-with-hsdp", _REFUSAL)
def full_compile_with_hsdp(profile: Profile, _facts: HostFacts) -> Iterator[Finding]:
    """Full compile and HSDP exclude each other; vllm-omni refuses the pair at start."""
    if profile.compile == "full" and profile.parallel.hsdp > 1:
        yield Finding(
            key="compile",
            value="full",
            reason=f"a whole-model graph cannot hold weights in {profile.parallel.hsdp} shards",
            advice="compile: regional, or parallel.hsdp: 1",
        )


@rule("full-compile-with-sequence-parallel", _REFUSAL)
def full_compile_with_sequence_parallel(profile: Profile, _facts: HostFacts) -> Iterator[Finding]:
    """Full compile and sequence parallelism exclude each other; vllm-omni refuses the pair at start."""
    degree = profile.parallel.ulysses * profile.parallel.ring
    if profile.compile == "full" and degree > 1:
        yield Finding(
            key="compile",
            value="full",
            reason=f"a whole-model graph cannot hold the exchange between {degree} devices",
            advice="compile: regional, or parallel.ulysses: 1 and parallel.ring: 1",
        )


@rule("compile-half-of-the-experts", f"{_OMNI}/issues/1535", runtimes=["torch-2.4.1-cu124"])
def compile_half_of_the_experts(profile: Profile, _facts: HostFacts) -> Iterator[Finding]:
    """vllm-omni 0.14 compiles the first expert only, and falls back to eager without an error."""
    if profile.backend == "vllm_omni" and profile.compile != "off":
        yield Finding(
            key="compile",
            value=profile.compile,
            reason="this runtime's vllm-omni compiles one of the two experts, and none when that fails",
            advice="compile: off, or runtime: omni-0.30-cu130",
        )


@rule("compile-of-backend", "https://github.com/huggingface/diffusers/releases/tag/v0.36.0")
def compile_of_backend(profile: Profile, _facts: HostFacts) -> Iterator[Finding]:
    """The diffusers backend compiles nothing: it is what is left when something faster does not come up."""
    if profile.backend == "diffusers" and profile.compile != "off":
        yield Finding(
            key="compile",
            value=profile.compile,
            reason="the diffusers backend runs eagerly",
            advice="compile: off, or backend: vllm_omni",
        )


RULES = (
    full_compile_with_hsdp,
    full_compile_with_sequence_parallel,
    compile_half_of_the_experts,
    compile_of_backend,
)
