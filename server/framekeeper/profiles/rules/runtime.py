"""Rules about the runtime: does it exist, can it run this backend, is what is installed what it says."""

from __future__ import annotations

from collections.abc import Iterator

from framekeeper.profiles.facts import HostFacts
from framekeeper.profiles.rules.rule import Finding, omni_source, rule
from framekeeper.profiles.runtimes import RUNTIMES, version_tuple
from framekeeper.profiles.schema import Profile

_OMNI = "https://github.com/vllm-project/vllm-omni"
_TEACACHE = omni_source("diffusion/cache/teacache/extractors.py")
_CUDA = "https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html"


@rule("runtime-unknown", "https://github.com/vllm-project/vllm-omni/releases/tag/v0.30.0")
def runtime_unknown(profile: Profile, _facts: HostFacts) -> Iterator[Finding]:
    """The runtime must be one whose versions the rules know."""
    if profile.runtime not in RUNTIMES and profile.backend != "fault":
        yield Finding(
            key="runtime",
            value=profile.runtime,
            reason="is not a runtime that we ship, so nothing is known about its conflicts",
            advice=f"one of {', '.join(RUNTIMES)}",
        )


@rule("runtime-of-device", "https://github.com/pytorch/pytorch/releases/tag/v2.13.0")
def runtime_of_device(profile: Profile, _facts: HostFacts) -> Iterator[Finding]:
    """A CPU runtime drives no card; of the CUDA runtimes only torch-2.4.1-cu124 has a platform for a CPU."""
    runtime = RUNTIMES.get(profile.runtime)
    if runtime is None or profile.backend == "fault":
        return
    if profile.devices.kind not in runtime.devices:
        fitting = [name for name, each in RUNTIMES.items() if profile.devices.kind in each.devices]
        built = "a CPU" if runtime.cuda is None else f"CUDA {runtime.cuda}"
        yield Finding(
            key="devices.kind",
            value=profile.devices.kind,
            reason=f"{profile.runtime} is built for {built}",
            advice=f"runtime: {' or '.join(fitting)}",
        )


@rule("executor-of-runtime", "https://github.com/vllm-project/vllm-omni/releases/tag/v0.14.0")
def executor_of_runtime(profile: Profile, _facts: HostFacts) -> Iterator[Finding]:
    """torch-2.4.1-cu124 runs in the worker's own process only: 0.14's workers need vllm's extension."""
    runtime = RUNTIMES.get(profile.runtime)
    if runtime and profile.executor not in runtime.executors:
        yield Finding(
            key="executor",
            value=profile.executor,
            reason=f"{profile.runtime} has only {', '.join(sorted(runtime.executors))}",
            advice=f"executor: {min(runtime.executors)}",
        )


@rule("executor-of-backend", "https://github.com/huggingface/diffusers/releases/tag/v0.36.0")
def executor_of_backend(profile: Profile, _facts: HostFacts) -> Iterator[Finding]:
    """The diffusers backend is one process on one device."""
    if profile.backend == "diffusers" and (profile.executor != "in_process" or profile.devices.count > 1):
        yield Finding(
            key="backend",
            value="diffusers",
            reason="runs in one process on one device",
            advice="executor: in_process and devices.count: 1, or backend: vllm_omni",
        )


@rule("cache-of-backend", _TEACACHE)
def cache_of_backend(profile: Profile, _facts: HostFacts) -> Iterator[Finding]:
    """vllm-omni's TeaCache has no extractor for Wan and raises at load; other backends have no cache."""
    if profile.cache == "teacache" or (profile.cache != "none" and profile.backend != "vllm_omni"):
        yield Finding(
            key="cache",
            value=profile.cache,
            reason=f"backend {profile.backend} has no such cache for Wan2.2",
            advice="cache: cache_dit with backend: vllm_omni, or cache: none",
        )


@rule("cache-of-runtime", "https://github.com/vllm-project/vllm-omni/releases/tag/v0.14.0")
def cache_of_runtime(profile: Profile, _facts: HostFacts) -> Iterator[Finding]:
    """torch-2.4.1-cu124 holds no cache-dit."""
    if profile.cache == "cache_dit" and profile.runtime == "torch-2.4.1-cu124":
        yield Finding(
            key="cache",
            value="cache_dit",
            reason="this runtime does not hold cache-dit",
            advice="cache: none, or runtime: omni-0.30-cu130",
        )


@rule("versions-differ", f"{_OMNI}/issues/2935")
def versions_differ(profile: Profile, facts: HostFacts) -> Iterator[Finding]:
    """What is installed must be what the runtime pins; vllm-omni itself only warns about another vllm."""
    runtime = RUNTIMES.get(profile.runtime)
    if runtime is None:
        return
    pinned = {"torch": runtime.torch, "vllm": runtime.vllm, "vllm-omni": runtime.vllm_omni}
    for package, version in pinned.items():
        found = facts.installed.get(package)
        if found is not None and version_tuple(found) != version_tuple(version):
            yield Finding(
                key="runtime",
                value=profile.runtime,
                reason=f"{package} {found} is installed, and the runtime is {package} {version}",
                advice="an environment installed from docker/runtimes/<runtime>/requirements.lock",
            )


@rule("driver-too-old", _CUDA, "https://github.com/verl-project/verl-omni/issues/133")
def driver_too_old(profile: Profile, facts: HostFacts) -> Iterator[Finding]:
    """The driver must be as new as the runtime's CUDA line needs: 580 for CUDA 13, 525 for CUDA 12."""
    runtime = RUNTIMES.get(profile.runtime)
    # Under WSL2 the driver is Windows' own, with other numbers.
    if runtime is None or facts.driver is None or facts.wsl or profile.devices.kind == "cpu":
        return
    for key, floor in (("runtime", runtime.driver), ("host.driver", profile.host.driver)):
        if floor is not None and version_tuple(facts.driver) < version_tuple(floor):
            yield Finding(
                key=key,
                value=profile.runtime if key == "runtime" else floor,
                reason=f"needs driver {floor}, and this host has {facts.driver}",
                advice="a newer driver on the host, or runtime: torch-2.4.1-cu124 on cards up to 9.0",
            )


RULES = (
    runtime_unknown,
    runtime_of_device,
    executor_of_runtime,
    executor_of_backend,
    cache_of_backend,
    cache_of_runtime,
    versions_differ,
    driver_too_old,
)
