"""What the rules know about each runtime we ship: versions, allocator, cards, drivers.

The locks are under docker/runtimes; this table is what follows from them. Versions and behaviour of the
pairs: docs/runtimes.md.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """One pinned set of packages.

    `devices` are the kinds that its vllm-omni has a platform for: a CUDA build of torch also computes on a
    CPU. `capabilities` are the least and the greatest CUDA compute capability its torch has code for, None
    where there is no CUDA. `driver` is the oldest Linux driver of its CUDA line, by
    https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html.
    `allocator_variable` is the variable its torch reads first, `allocator_keys` those that we can write and
    it knows. `sharding` are the keys of `parallel` that its vllm-omni has for Wan.
    """

    name: str
    python: str
    torch: str
    vllm: str
    vllm_omni: str
    diffusers: str
    cuda: str | None
    devices: frozenset[str]
    capabilities: tuple[tuple[int, int], tuple[int, int]] | None
    driver: str | None
    backends: frozenset[str]
    executors: frozenset[str]
    allocator_variable: str
    allocator_keys: frozenset[str]
    quantizations: frozenset[str]
    sharding: frozenset[str]


# Keys of torch 2.4's c10/cuda/CUDAAllocatorConfig.cpp that a profile can set. max_non_split_rounding_mb
# came after it: https://github.com/pytorch/pytorch/pull/136174
_KEYS_2_4 = frozenset(
    {
        "expandable_segments",
        "max_split_size_mb",
        "garbage_collection_threshold",
        "roundup_power2_divisions",
        "backend",
    }
)

_SHARDING_0_14 = frozenset({"tensor", "ulysses", "ring", "cfg"})

RUNTIMES: dict[str, Runtime] = {
    runtime.name: runtime
    for runtime in (
        Runtime(
            name="omni-0.30-cpu",
            python="3.11",
            torch="2.13.0",
            vllm="0.30.0",
            vllm_omni="0.30.0",
            diffusers="0.40.0",
            cuda=None,
            devices=frozenset({"cpu"}),
            capabilities=None,
            driver=None,
            backends=frozenset({"vllm_omni", "diffusers", "fault"}),
            executors=frozenset({"in_process", "multiprocess"}),
            allocator_variable="PYTORCH_ALLOC_CONF",
            allocator_keys=_KEYS_2_4 | {"max_non_split_rounding_mb"},
            quantizations=frozenset(),
            sharding=_SHARDING_0_14 | {"vae"},
        ),
        Runtime(
            name="omni-0.30-cu130",
            python="3.12",
            torch="2.13.0",
            vllm="0.30.0",
            vllm_omni="0.30.0",
            diffusers="0.40.0",
            cuda="13.0",
            devices=frozenset({"cuda"}),
            capabilities=((7, 5), (12, 1)),
            driver="580",
            backends=frozenset({"vllm_omni", "diffusers", "fault"}),
            executors=frozenset({"in_process", "multiprocess"}),
            allocator_variable="PYTORCH_ALLOC_CONF",
            allocator_keys=_KEYS_2_4 | {"max_non_split_rounding_mb"},
            quantizations=frozenset({"fp8", "int8"}),
            sharding=_SHARDING_0_14 | {"vae", "hsdp", "pipeline"},
        ),
        Runtime(
            name="torch-2.4.1-cu124",
            python="3.11",
            torch="2.4.1",
            vllm="0.14.0",
            vllm_omni="0.14.0",
            diffusers="0.36.0",
            cuda="12.4",
            devices=frozenset({"cuda", "cpu"}),
            capabilities=((5, 0), (9, 0)),
            driver="525",
            backends=frozenset({"vllm_omni", "diffusers", "fault"}),
            executors=frozenset({"in_process"}),
            allocator_variable="PYTORCH_CUDA_ALLOC_CONF",
            allocator_keys=_KEYS_2_4,
            quantizations=frozenset(),
            sharding=_SHARDING_0_14,
        ),
    )
}


def version_tuple(text: str) -> tuple[int, ...]:
    """Numbers of a dotted version, without a local part: "2.4.1+cu124" gives (2, 4, 1)."""
    numbers = []
    for part in text.split("+", maxsplit=1)[0].split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)
