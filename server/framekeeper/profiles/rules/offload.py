"""Rules about weights that wait in host memory."""

from __future__ import annotations

from collections.abc import Iterator

from framekeeper.profiles.facts import HostFacts
from framekeeper.profiles.rules.rule import Finding, rule
from framekeeper.profiles.schema import Profile

_MEASURED = ("omni-0.30-cu130", "omni-0.30-cpu")


@rule(
    "offload-with-compile",
    "https://github.com/vllm-project/vllm-omni/issues/2992",
    "https://github.com/vllm-project/vllm-omni/issues/3433",
    "https://github.com/vllm-project/vllm-omni/issues/4598",
    measured_on=_MEASURED,
)
def offload_with_compile(profile: Profile, _facts: HostFacts) -> Iterator[Finding]:
    """Offload and regional compile exclude each other, except as an accepted risk where it was measured.

    Older lines of vllm-omni failed at the first step with the pair; 0.30 ran it on an H200 without a fault.
    """
    if profile.offload != "none" and profile.compile == "regional":
        yield Finding(
            key="compile",
            value=profile.compile,
            reason=f"torch.compile with offload: {profile.offload} has failed at the first denoising step",
            advice="compile: off, or offload: none where the card has room",
        )


@rule(
    "offload-with-full-compile",
    "https://github.com/vllm-project/vllm-omni/blob/main/vllm_omni/diffusion/data.py",
)
def offload_with_full_compile(profile: Profile, _facts: HostFacts) -> Iterator[Finding]:
    """Offload and full compile exclude each other always: upstream refuses the pair at start."""
    if profile.offload != "none" and profile.compile == "full":
        yield Finding(
            key="compile",
            value="full",
            reason=f"a whole-model graph cannot hold weights that come and go (offload: {profile.offload})",
            advice="compile: off, or offload: none",
        )


RULES = (offload_with_compile, offload_with_full_compile)
