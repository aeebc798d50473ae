"""Rules about weights that wait in host memory."""

from __future__ import annotations

from collections.abc import Iterator

from framekeeper.profiles.facts import HostFacts
from framekeeper.profiles.memory import offloaded_bytes
from framekeeper.profiles.rules.rule import Finding, omni_source, rule
from framekeeper.profiles.runtimes import RUNTIMES, version_tuple
from framekeeper.profiles.schema import Profile

_OMNI = "https://github.com/vllm-project/vllm-omni"
_MEASURED = ("omni-0.30-cu130", "omni-0.30-cpu")


def _omni_older_than(profile: Profile, version: tuple[int, ...]) -> bool:
    runtime = RUNTIMES.get(profile.runtime)
    return runtime is not None and version_tuple(runtime.vllm_omni) < version


@rule(
    "offload-with-compile",
    f"{_OMNI}/issues/2992",
    f"{_OMNI}/issues/3433",
    f"{_OMNI}/issues/4598",
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
    omni_source("diffusion/data.py"),
    "https://github.com/huggingface/diffusers/issues/12728",
)
def offload_with_full_compile(profile: Profile, _facts: HostFacts) -> Iterator[Finding]:
    """Offload and full compile exclude each other always; vllm-omni refuses the pair at start."""
    if profile.offload != "none" and profile.compile == "full":
        yield Finding(
            key="compile",
            value="full",
            reason=f"a whole-model graph cannot hold weights that come and go (offload: {profile.offload})",
            advice="compile: off, or offload: none",
        )


@rule("offload-with-quantization", f"{_OMNI}/pull/5988", f"{_OMNI}/pull/5737")
def offload_with_quantization(profile: Profile, _facts: HostFacts) -> Iterator[Finding]:
    """Quantised weights lose their column-major layout in layerwise offload before vllm-omni 0.30.

    The kernel then refuses them: `cutlass_scaled_mm, scaled_mm_entry.cu:203` (or :209), `b.stride(0) == 1`.
    """
    quantized = profile.quantization != "none" and profile.offload == "layerwise"
    if quantized and _omni_older_than(profile, (0, 30)):
        yield Finding(
            key="quantization",
            value=profile.quantization,
            reason=f"the layerwise offloader of {profile.runtime} hands cutlass_scaled_mm row-major weights",
            advice="quantization: none, or offload: none, or runtime: omni-0.30-cu130",
        )


@rule("offload-with-sequence-parallel", f"{_OMNI}/issues/2218")
def offload_with_sequence_parallel(profile: Profile, _facts: HostFacts) -> Iterator[Finding]:
    """Layerwise offload under Ulysses parallelism made noise instead of a video in older vllm-omni."""
    split = profile.parallel.ulysses * profile.parallel.ring > 1
    if profile.offload == "layerwise" and split and _omni_older_than(profile, (0, 30)):
        yield Finding(
            key="parallel.ulysses",
            value=str(profile.parallel.ulysses),
            reason="with layerwise offload the video was noise on this line of vllm-omni",
            advice="parallel.ulysses: 1 and parallel.ring: 1, or offload: none",
        )


@rule("offload-with-hsdp", f"{_OMNI}/issues/2021", omni_source("diffusion/offloader/base.py"))
def offload_with_hsdp(profile: Profile, _facts: HostFacts) -> Iterator[Finding]:
    """HSDP and offload shard the same weights twice: tensors and DTensors get mixed."""
    if profile.offload != "none" and profile.parallel.hsdp > 1:
        yield Finding(
            key="parallel.hsdp",
            value=str(profile.parallel.hsdp),
            reason=f"sharded weights cannot be offloaded as well (offload: {profile.offload})",
            advice="parallel.hsdp: 1, or offload: none",
        )


@rule("offload-with-cache", f"{_OMNI}/issues/1710", f"{_OMNI}/issues/1868")
def offload_with_cache(profile: Profile, _facts: HostFacts) -> Iterator[Finding]:
    """Model offload breaks with cache-dit and makes TeaCache do nothing."""
    if profile.offload == "model" and profile.cache != "none":
        fails = (
            "an error at the first request" if profile.cache == "cache_dit" else "a cache that is never used"
        )
        yield Finding(
            key="cache",
            value=profile.cache,
            reason=f"offload: model replaces the hooks of the cache; the result is {fails}",
            advice="cache: none, or offload: none",
        )


@rule("offload-pinned-on-wsl", "https://github.com/microsoft/WSL/issues/14078")
def offload_pinned_on_wsl(profile: Profile, facts: HostFacts) -> Iterator[Finding]:
    """WSL2 lets a process pin only 0.5 to 2 GB, and says `CUDA error: out of memory` beyond."""
    if profile.offload != "none" and profile.offload_pin_memory and facts.wsl:
        yield Finding(
            key="offload_pin_memory",
            value="true",
            reason="WSL2 has too little page-locked memory for the weights of a Wan2.2 model",
            advice="offload_pin_memory: false",
        )


@rule("offload-pinned-over-limit", "https://github.com/microsoft/WSL/issues/14078", severity="warn")
def offload_pinned_over_limit(profile: Profile, facts: HostFacts) -> Iterator[Finding]:
    """Pinned weights above the limit of locked memory fail to load where the driver counts them."""
    needed, limit = offloaded_bytes(profile), facts.locked_bytes
    if profile.offload_pin_memory and limit is not None and needed > limit:
        yield Finding(
            key="offload_pin_memory",
            value="true",
            reason=f"{needed / 2**30:.1f} GiB would be pinned, and {limit / 2**30:.1f} GiB is the limit",
            advice="offload_pin_memory: false, or raise the container's memlock limit",
        )


@rule(
    "offload-pinned-on-cpu",
    omni_source("diffusion/offloader/layerwise_backend.py"),
)
def offload_pinned_on_cpu(profile: Profile, _facts: HostFacts) -> Iterator[Finding]:
    """Without a CUDA device torch cannot pin memory, and layerwise offload fails at load."""
    if profile.devices.kind == "cpu" and profile.offload == "layerwise" and profile.offload_pin_memory:
        yield Finding(
            key="offload_pin_memory",
            value="true",
            reason="there is nothing to pin memory for on a CPU, and loading fails",
            advice="offload_pin_memory: false",
        )


@rule(
    "prefetch-without-layers",
    omni_source("diffusion/offloader/layerwise_backend.py"),
    severity="warn",
)
def prefetch_without_layers(profile: Profile, _facts: HostFacts) -> Iterator[Finding]:
    """Only layerwise offload prefetches; the key does nothing otherwise."""
    if profile.offload_prefetch == "sync" and profile.offload != "layerwise":
        yield Finding(
            key="offload_prefetch",
            value="sync",
            reason=f"does nothing with offload: {profile.offload}",
            advice="offload: layerwise, or leave offload_prefetch out",
        )


RULES = (
    offload_with_compile,
    offload_with_full_compile,
    offload_with_quantization,
    offload_with_sequence_parallel,
    offload_with_hsdp,
    offload_with_cache,
    offload_pinned_on_wsl,
    offload_pinned_over_limit,
    offload_pinned_on_cpu,
    prefetch_without_layers,
)
