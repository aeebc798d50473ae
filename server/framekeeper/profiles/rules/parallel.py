"""Rules about work that is split over devices."""

from __future__ import annotations

from collections.abc import Iterator

from framekeeper.profiles.facts import HostFacts
from framekeeper.profiles.rules.rule import Finding, omni_source, rule
from framekeeper.profiles.runtimes import RUNTIMES
from framekeeper.profiles.schema import Profile
from framekeeper.profiles.wan import architecture

_CONFIG = omni_source("diffusion/data.py")
_OMNI = "https://github.com/vllm-project/vllm-omni"


@rule("parallel-product", _CONFIG, f"{_OMNI}/issues/254", f"{_OMNI}/pull/2025")
def parallel_product(profile: Profile, _facts: HostFacts) -> Iterator[Finding]:
    """tensor × ulysses × ring × pipeline × cfg must be devices.count; HSDP alone may stand for it."""
    parallel = profile.parallel
    product = parallel.tensor * parallel.ulysses * parallel.ring * parallel.pipeline * parallel.cfg
    if product == 1 and parallel.hsdp > 1:
        product = parallel.hsdp
    if product != profile.devices.count:
        yield Finding(
            key="devices.count",
            value=str(profile.devices.count),
            reason=f"tensor × ulysses × ring × pipeline × cfg is {product}",
            advice=f"devices.count: {product}, or other sizes in parallel",
        )


@rule("parallel-hsdp-shape", _CONFIG)
def parallel_hsdp_shape(profile: Profile, _facts: HostFacts) -> Iterator[Finding]:
    """HSDP excludes tensor and pipeline parallelism, and its shards are as many as the other devices."""
    parallel = profile.parallel
    others = parallel.ulysses * parallel.ring * parallel.cfg
    if parallel.hsdp > 1 and (
        parallel.tensor > 1 or parallel.pipeline > 1 or others not in (1, parallel.hsdp)
    ):
        yield Finding(
            key="parallel.hsdp",
            value=str(parallel.hsdp),
            reason="vllm-omni refuses it beside tensor or pipeline, or with another number of devices",
            advice=f"parallel.hsdp: {max(others, 1)}, parallel.tensor: 1, parallel.pipeline: 1",
        )


@rule("parallel-heads", _CONFIG)
def parallel_heads(profile: Profile, _facts: HostFacts) -> Iterator[Finding]:
    """tensor × ulysses must divide the attention heads: 40 of A14B, 24 of TI2V-5B."""
    model = architecture(profile)
    split = profile.parallel.tensor * profile.parallel.ulysses
    if model is not None and model.heads % split:
        key = "parallel.ulysses" if profile.parallel.ulysses > 1 else "parallel.tensor"
        yield Finding(
            key=key,
            value=str(getattr(profile.parallel, key.split(".")[1])),
            reason=f"{model.name} has {model.heads} heads, which {split} devices cannot share evenly",
            advice=f"sizes whose product divides {model.heads}",
        )


@rule("parallel-of-runtime", _CONFIG)
def parallel_of_runtime(profile: Profile, _facts: HostFacts) -> Iterator[Finding]:
    """A kind of parallelism must exist in the runtime: 0.14 has no HSDP, VAE patches or pipeline of Wan."""
    runtime = RUNTIMES.get(profile.runtime)
    for key in type(profile.parallel).model_fields:
        size = getattr(profile.parallel, key)
        known = runtime is None or (key in runtime.sharding and profile.backend != "diffusers")
        if size > 1 and not known:
            yield Finding(
                key=f"parallel.{key}",
                value=str(size),
                reason=f"{profile.runtime} with backend {profile.backend} does not have it",
                advice=f"parallel.{key}: 1",
            )


@rule("parallel-vae", _CONFIG)
def parallel_vae(profile: Profile, _facts: HostFacts) -> Iterator[Finding]:
    """The VAE is split over devices of the group, so it cannot use more of them than there are."""
    if profile.parallel.vae > profile.devices.count:
        yield Finding(
            key="parallel.vae",
            value=str(profile.parallel.vae),
            reason=f"the group has {profile.devices.count} device(s)",
            advice=f"parallel.vae: {profile.devices.count} or less",
        )


@rule("parallel-vae-without-tiles", _CONFIG)
def parallel_vae_without_tiles(profile: Profile, _facts: HostFacts) -> Iterator[Finding]:
    """What devices share is tiles; without tiling there is nothing to share."""
    if profile.parallel.vae > 1 and not profile.vae.tiling:
        yield Finding(
            key="vae.tiling",
            value="false",
            reason=f"parallel.vae: {profile.parallel.vae} shares tiles between devices",
            advice="vae.tiling: true, or parallel.vae: 1",
        )


@rule("parallel-cfg-without-guidance", omni_source("diffusion/distributed/cfg_parallel.py"), severity="warn")
def parallel_cfg_without_guidance(profile: Profile, _facts: HostFacts) -> Iterator[Finding]:
    """Without guidance there is one pass a step, and the second device of parallel.cfg idles."""
    if profile.parallel.cfg > 1 and profile.defaults.guidance_scale <= 1:
        yield Finding(
            key="parallel.cfg",
            value=str(profile.parallel.cfg),
            reason=f"guidance_scale: {profile.defaults.guidance_scale} needs no negative pass",
            advice="parallel.cfg: 1 and parallel.ulysses: 2",
        )


@rule("devices-need-processes", omni_source("diffusion/executor/uniproc_executor.py"))
def devices_need_processes(profile: Profile, _facts: HostFacts) -> Iterator[Finding]:
    """Several devices need one process each."""
    if profile.devices.count > 1 and profile.executor == "in_process":
        yield Finding(
            key="executor",
            value="in_process",
            reason=f"{profile.devices.count} devices need a process each",
            advice="executor: multiprocess",
        )


@rule("device-twice", f"{_OMNI}/issues/254", "https://github.com/vllm-project/vllm/issues/20305")
def device_twice(profile: Profile, _facts: HostFacts) -> Iterator[Finding]:
    """No two groups share a device, so no UUID is listed twice."""
    listed = profile.devices.uuids
    if listed != "auto":
        for uuid in sorted({each for each in listed if listed.count(each) > 1}):
            yield Finding(
                key="devices.uuids",
                value=uuid,
                reason="is listed twice, and two groups on one card take each other's memory",
                advice="every UUID once",
            )


@rule("devices-in-groups", f"{_OMNI}/pull/2025")
def devices_in_groups(profile: Profile, _facts: HostFacts) -> Iterator[Finding]:
    """The listed devices must make whole groups."""
    listed = profile.devices.uuids
    if listed != "auto" and len(listed) % profile.devices.count:
        yield Finding(
            key="devices.uuids",
            value=str(len(listed)),
            reason=f"{len(listed)} devices do not make whole groups of {profile.devices.count}",
            advice=f"a multiple of {profile.devices.count} UUIDs",
        )


RULES = (
    parallel_product,
    parallel_hsdp_shape,
    parallel_heads,
    parallel_of_runtime,
    parallel_vae,
    parallel_vae_without_tiles,
    parallel_cfg_without_guidance,
    devices_need_processes,
    device_twice,
    devices_in_groups,
)
