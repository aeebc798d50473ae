"""Rules about quantised weights; layerwise offload of them is in `offload`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from framekeeper.profiles.facts import HostFacts
from framekeeper.profiles.rules.cards import capabilities, capability_tuple
from framekeeper.profiles.rules.rule import Finding, omni_source, rule
from framekeeper.profiles.runtimes import RUNTIMES
from framekeeper.profiles.schema import Profile

_VLLM = "https://github.com/vllm-project/vllm"
_OMNI = "https://github.com/vllm-project/vllm-omni"
_TURING, _AMPERE, _ADA, _DESKTOP_BLACKWELL = (7, 5), (8, 0), (8, 9), (12, 0)
_HOPPER = 9


@rule(
    "quantization-with-compile",
    f"{_VLLM}/pull/12721",
    "https://github.com/pytorch/pytorch/issues/129521",
    measured_on=["omni-0.30-cu130"],
)
def quantization_with_compile(profile: Profile, _facts: HostFacts) -> Iterator[Finding]:
    """Compiled graphs have handed quantised kernels row-major weights; accepted where it was measured."""
    if profile.quantization != "none" and profile.compile != "off":
        yield Finding(
            key="compile",
            value=profile.compile,
            reason=f"compiled graphs have broken the layout that {profile.quantization} kernels need",
            advice="compile: off, or quantization: none",
        )


@rule("quantization-of-runtime", f"{_OMNI}/pull/5988", f"{_OMNI}/issues/1473")
def quantization_of_runtime(profile: Profile, _facts: HostFacts) -> Iterator[Finding]:
    """A runtime without quantised kernels cannot quantise: a CPU has none, torch 2.4.1 cannot load vllm's."""
    runtime = RUNTIMES.get(profile.runtime)
    if runtime and profile.quantization != "none" and profile.quantization not in runtime.quantizations:
        known = ", ".join(sorted(runtime.quantizations)) or "none"
        yield Finding(
            key="quantization",
            value=profile.quantization,
            reason=f"{profile.runtime} has no kernels for it (it has: {known})",
            advice="quantization: none, or runtime: omni-0.30-cu130",
        )


@rule(
    "quantization-on-desktop-blackwell",
    f"{_VLLM}/issues/32109",
    f"{_VLLM}/issues/43367",
    f"{_VLLM}/issues/58241",
)
def quantization_on_desktop_blackwell(profile: Profile, facts: HostFacts) -> Iterator[Finding]:
    """Cards of compute capability 12.x have no working cutlass_scaled_mm, whatever the support query says."""
    for capability in capabilities(profile, facts):
        if profile.quantization != "none" and capability_tuple(capability) >= _DESKTOP_BLACKWELL:
            yield Finding(
                key="quantization",
                value=profile.quantization,
                reason=f"no compiled cutlass_scaled_mm for compute capability {capability}",
                advice="quantization: none",
            )


@rule(
    "quantization-below-card",
    f"{_VLLM}/issues/32109",
    omni_source("quantization/int8_config.py"),
)
def quantization_below_card(profile: Profile, facts: HostFacts) -> Iterator[Finding]:
    """fp8 needs compute capability 7.5, int8 needs 8.0."""
    floor = {"fp8": _TURING, "int8": _AMPERE}.get(profile.quantization)
    for capability in capabilities(profile, facts):
        if floor and capability_tuple(capability) < floor:
            yield Finding(
                key="quantization",
                value=profile.quantization,
                reason=f"its kernels begin at {floor[0]}.{floor[1]}, and the card has {capability}",
                advice="quantization: none",
            )


@rule("block-fp8-on-ada", f"{_VLLM}/issues/43507", severity="warn")
def block_fp8_on_ada(profile: Profile, facts: HostFacts) -> Iterator[Finding]:
    """Ada cards (8.9) have no kernel for checkpoints whose fp8 scales are by block."""
    for capability in capabilities(profile, facts):
        if profile.quantization == "fp8" and capability_tuple(capability) == _ADA:
            yield Finding(
                key="quantization",
                value="fp8",
                reason="on compute capability 8.9 this holds for scales by tensor or row, not by block",
                advice="a bf16 checkpoint, which is quantised by tensor when it is loaded",
            )


@rule("quantization-dtype", omni_source("quantization/int8_config.py"))
def quantization_dtype(profile: Profile, _facts: HostFacts) -> Iterator[Finding]:
    """Quantised kernels take 16-bit activations only."""
    if profile.quantization != "none" and profile.dtype == "float32":
        yield Finding(
            key="dtype",
            value="float32",
            reason=f"{profile.quantization} kernels take bfloat16 or float16 activations",
            advice="dtype: bfloat16",
        )


@rule(
    "attention-fp8-kernel",
    omni_source("diffusion/attention/backends/flash_attn.py"),
    "https://github.com/Dao-AILab/flash-attention/tree/main/hopper",
)
def attention_fp8_kernel(profile: Profile, facts: HostFacts) -> Iterator[Finding]:
    """attention_quantization: fp8 is FlashAttention 3's: Hopper cards and vllm-omni 0.30 only."""
    if profile.attention_quantization == "none":
        return
    found = Finding(
        key="attention_quantization",
        value=profile.attention_quantization,
        reason="",
        advice="attention_quantization: none",
    )
    if profile.runtime != "omni-0.30-cu130" or profile.backend != "vllm_omni":
        yield replace(found, reason=f"there is no fp8 kernel for {profile.backend} in {profile.runtime}")
    if profile.attention not in ("auto", "flash_attn"):
        yield replace(found, reason=f"it is FlashAttention 3's, and attention is {profile.attention}")
    if profile.parallel.ring > 1:
        yield replace(found, reason="ring attention has kernels of its own, without fp8")
    if profile.dtype != "bfloat16":
        yield replace(found, reason=f"its result is bfloat16, and dtype is {profile.dtype}")
    for capability in capabilities(profile, facts):
        if capability_tuple(capability)[0] != _HOPPER:
            yield replace(found, reason=f"FlashAttention 3 is for compute capability 9.0, not {capability}")


RULES = (
    quantization_with_compile,
    quantization_of_runtime,
    quantization_on_desktop_blackwell,
    quantization_below_card,
    block_fp8_on_ada,
    quantization_dtype,
    attention_fp8_kernel,
)
