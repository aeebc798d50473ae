"""Rules about what a card can do: compute capability, memory, attention kernels, types."""

from __future__ import annotations

from collections.abc import Iterator

from framekeeper.profiles.facts import Card, HostFacts
from framekeeper.profiles.memory import budget, card_memory
from framekeeper.profiles.rules.rule import Finding, omni_source, rule
from framekeeper.profiles.runtimes import RUNTIMES
from framekeeper.profiles.schema import Profile

_FLASH = "https://github.com/Dao-AILab/flash-attention"
_GIB = 1024**3
# A card reports less than its name says; 24 GB cards have 23.5 to 24.0 GiB.
_REPORTED = 0.97


def capability_tuple(text: str) -> tuple[int, int]:
    """ "9.0" gives (9, 0)."""
    major, minor = text.split(".")
    return int(major), int(minor)


def capabilities(profile: Profile, facts: HostFacts) -> tuple[str, ...]:
    """Compute capabilities to judge by: those of the cards that are there, else those the profile is for."""
    if profile.devices.kind == "cpu":
        return ()
    if facts.cards is None:
        return profile.host.compute_capabilities
    return tuple(dict.fromkeys(card.capability for card in chosen_cards(profile, facts)))


def chosen_cards(profile: Profile, facts: HostFacts) -> list[Card]:
    """The cards of this host that the profile may use; empty where they are not known."""
    if profile.devices.kind == "cpu":
        return []
    listed = profile.devices.uuids
    return [card for card in facts.cards or () if listed == "auto" or card.uuid in listed]


@rule(
    "runtime-without-code-for-card",
    "https://github.com/vllm-project/vllm/issues/16901",
    "https://docs.nvidia.com/cuda/archive/13.0.0/cuda-toolkit-release-notes/index.html",
)
def runtime_without_code_for_card(profile: Profile, facts: HostFacts) -> Iterator[Finding]:
    """torch 2.4.1+cu124 has code up to 9.0, so no Blackwell; CUDA 13 begins at 7.5, so no Volta.

    The words are `no kernel image is available for execution on the device`.
    """
    runtime = RUNTIMES.get(profile.runtime)
    for capability in capabilities(profile, facts):
        if runtime is None or runtime.capabilities is None:
            continue
        least, most = runtime.capabilities
        if not least <= capability_tuple(capability) <= most:
            yield Finding(
                key="runtime",
                value=profile.runtime,
                reason=f"torch {runtime.torch} (CUDA {runtime.cuda}) has no code for compute capability "
                f"{capability}, only for {least[0]}.{least[1]} to {most[0]}.{most[1]}",
                advice="runtime: omni-0.30-cu130 from 7.5 on, torch-2.4.1-cu124 up to 9.0",
            )


@rule("card-not-meant", "https://github.com/vllm-project/vllm/issues/16901")
def card_not_meant(profile: Profile, facts: HostFacts) -> Iterator[Finding]:
    """A profile runs only on the cards it names in host.compute_capabilities."""
    meant = profile.host.compute_capabilities
    if facts.cards is not None and meant:
        for capability in capabilities(profile, facts):
            if capability not in meant:
                yield Finding(
                    key="host.compute_capabilities",
                    value=", ".join(meant),
                    reason=f"this host's card has {capability}",
                    advice="FRAMEKEEPER_PROFILE: a profile made for this card",
                )


@rule(
    "shape-over-memory",
    "https://github.com/vllm-project/vllm-omni/issues/704",
    "https://github.com/vllm-project/vllm-omni/issues/2327",
)
def shape_over_memory(profile: Profile, facts: HostFacts) -> Iterator[Finding]:
    """The largest admitted shape must fit the card by the memory model."""
    needed = budget(profile)
    nominal = card_memory(profile)
    present = [card.memory_bytes for card in chosen_cards(profile, facts)]
    memory = min(present) if present else int(nominal * _REPORTED) if nominal else None
    if needed is not None and memory is not None and needed.bytes > memory:
        yield Finding(
            key="admits.size",
            value=profile.admits.size,
            reason=f"with {profile.admits.num_frames} frames it needs {needed.bytes / _GIB:.1f} GiB "
            f"of the card's {memory / _GIB:.1f} GiB",
            advice="a smaller admits.size or admits.num_frames, vae.tiling: true, or offload: layerwise",
        )


@rule("flash-attention-of-card", f"{_FLASH}/issues/1540", f"{_FLASH}/issues/1638")
def flash_attention_of_card(profile: Profile, facts: HostFacts) -> Iterator[Finding]:
    """FlashAttention needs an Ampere card (8.0) or a newer one, and never runs on a CPU."""
    if profile.attention not in ("flash_attn", "sage_attn"):
        return
    old = [each for each in capabilities(profile, facts) if capability_tuple(each) < (8, 0)]
    if old or profile.devices.kind == "cpu":
        yield Finding(
            key="attention",
            value=profile.attention,
            reason=f"has no kernel for {'a CPU' if not old else f'compute capability {old[0]}'}",
            advice="attention: torch_sdpa",
        )


@rule("attention-of-runtime", omni_source("diffusion/attention/backends/registry.py"))
def attention_of_runtime(profile: Profile, _facts: HostFacts) -> Iterator[Finding]:
    """torch-2.4.1-cu124 has torch's own attention only: vllm's compiled extension does not load there."""
    if profile.runtime == "torch-2.4.1-cu124" and profile.attention not in ("auto", "torch_sdpa"):
        yield Finding(
            key="attention",
            value=profile.attention,
            reason="this runtime holds no kernel but torch's own",
            advice="attention: torch_sdpa",
        )


RULES = (
    runtime_without_code_for_card,
    card_not_meant,
    shape_over_memory,
    flash_attention_of_card,
    attention_of_runtime,
)
