"""Rules about the container around a worker: memory, shared memory, namespaces."""

from __future__ import annotations

from collections.abc import Iterator

from framekeeper.profiles.facts import HostFacts
from framekeeper.profiles.memory import host_bytes
from framekeeper.profiles.rules.rule import Finding, rule
from framekeeper.profiles.schema import Profile, parse_bytes

_GIB = 1024**3
_OMNI = "https://github.com/vllm-project/vllm-omni"
# Docker's default of 64 MiB is what fails; NCCL and the result of one video need far less than this.
_LEAST_SHM = _GIB


@rule("memory-too-small", "https://github.com/kijai/ComfyUI-WanVideoWrapper/issues/1044")
def memory_too_small(profile: Profile, facts: HostFacts) -> Iterator[Finding]:
    """The container's memory must hold what is offloaded, and one expert while it loads."""
    if facts.memory_bytes is None:
        return
    floors = {"host.memory": parse_bytes(profile.host.memory) if profile.host.memory else 0}
    floors["offload"] = host_bytes(profile)
    for key, floor in floors.items():
        if floor > facts.memory_bytes:
            yield Finding(
                key=key,
                value=str(profile.host.memory) if key == "host.memory" else profile.offload,
                reason=f"needs {floor / _GIB:.1f} GiB of host memory, and the container has "
                f"{facts.memory_bytes / _GIB:.1f} GiB",
                advice="a larger memory limit, offload: none, or a quantization",
            )


@rule(
    "shm-too-small",
    "https://github.com/vllm-project/vllm/issues/789",
    "https://github.com/NVIDIA/nccl/issues/290",
    "https://github.com/NVIDIA/nccl/issues/342",
)
def shm_too_small(profile: Profile, facts: HostFacts) -> Iterator[Finding]:
    """Worker processes exchange results and NCCL data in /dev/shm; a full one is `Bus error`."""
    if facts.shm_bytes is None:
        return
    floor = parse_bytes(profile.host.shm) if profile.host.shm else 0
    if profile.executor == "multiprocess" and profile.devices.kind == "cuda":
        floor = max(floor, _LEAST_SHM)
    if facts.shm_bytes < floor:
        yield Finding(
            key="host.shm" if profile.host.shm else "executor",
            value=profile.host.shm or profile.executor,
            reason=f"shared memory has {facts.shm_bytes / _GIB:.2f} GiB, {floor / _GIB:.1f} GiB are needed",
            advice="shm_size of the container, or executor: in_process on one device",
        )


@rule("executor-with-host-ipc", f"{_OMNI}/issues/2317")
def executor_with_host_ipc(profile: Profile, facts: HostFacts) -> Iterator[Finding]:
    """In the host's IPC namespace, what killed workers held outlives the container."""
    if profile.executor == "multiprocess" and facts.host_ipc:
        yield Finding(
            key="executor",
            value="multiprocess",
            reason="the container shares the host's IPC namespace, where what killed workers held stays",
            advice="shm_size instead of ipc: host in the container, or executor: in_process",
        )


RULES = (memory_too_small, shm_too_small, executor_with_host_ipc)
