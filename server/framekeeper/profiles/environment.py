"""Variables people set to cure this stack: those that do nothing, and those that contradict a profile.

A worker's environment is built from nothing (see `launch`), so none of these can change a run. They are
reported all the same, because whoever set one believes that it does something. What is read was looked up in
the sources of torch 2.4.1 and 2.13.0 and tried.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from framekeeper.profiles.launch import PASSED, Launch

# Name -> the key of a profile that does what the name promises.
PLACEBOS = {
    "TORCH_COMPILE": "compile: off",
    "TORCHINDUCTOR_COMPILE": "compile: off",
    "TORCH_INDUCTOR_DISABLE": "compile: off",
    "TORCH_USE_AOT_AUTOGRAD": "compile: off",
    "TORCH_CUTLASS_ALLOWED_COMPUTE_CAP": "host.compute_capabilities and quantization: none",
}

# Variables that torch, vllm or CUDA do read, and that a profile decides here.
DECIDED = {
    "TORCH_COMPILE_DISABLE": "compile",
    "TORCHDYNAMO_DISABLE": "compile",
    "TORCHINDUCTOR_CACHE_DIR": "the cache directory of (runtime, card, profile, group)",
    "TORCHINDUCTOR_FX_GRAPH_CACHE": "runtime",
    "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "compile",
    "TRITON_CACHE_DIR": "the cache directory of (runtime, card, profile, group)",
    "PYTORCH_CUDA_ALLOC_CONF": "allocator",
    "PYTORCH_ALLOC_CONF": "allocator",
    "CUDA_VISIBLE_DEVICES": "devices.uuids",
    "CUDA_LAUNCH_BLOCKING": "offload_prefetch: sync",
    "DIFFUSION_CACHE_BACKEND": "cache",
    "DIFFUSION_CACHE_ADAPTER": "cache",
    "DIFFUSION_ATTENTION_BACKEND": "attention",
    "HF_HUB_OFFLINE": "always 1: weights are fetched beforehand",
    "VLLM_WORKER_MULTIPROC_METHOD": "always spawn",
    "OMP_NUM_THREADS": "devices.kind: cpu shares the processors between its devices",
}

# Whatever else starts so is meant for the engine's libraries, and worth a word when it does not reach them.
_FAMILIES = ("TORCH", "PYTORCH_", "CUDA_", "NCCL_", "TRITON_", "VLLM_", "HF_", "OMP_", "DIFFUSION_")


@dataclass(frozen=True, kw_only=True)
class Variable:
    """What is to be said about one inherited variable. `kind` is `placebo`, `overridden` or `dropped`."""

    name: str
    value: str
    kind: str
    reason: str
    advice: str

    def __str__(self) -> str:
        return f"{self.name}={self.value}: {self.reason}. Set: {self.advice}."


def examine_environment(inherited: Mapping[str, str], launch: Launch) -> list[Variable]:
    """Inherited variables that do nothing or say something else than the launch, sorted by name."""
    found = []
    for name, value in sorted(inherited.items()):
        decided = name in DECIDED or name.startswith(_FAMILIES)
        if name in PASSED:
            continue
        if name in PLACEBOS:
            found.append(_placebo(name, value))
        elif decided and launch.environment.get(name) != value:
            found.append(_contradiction(name, value, launch))
    return found


def _placebo(name: str, value: str) -> Variable:
    reason = "nothing in torch 2.4.1, torch 2.13.0, vllm or vllm-omni reads this variable"
    return Variable(name=name, value=value, kind="placebo", reason=reason, advice=PLACEBOS[name])


def _contradiction(name: str, value: str, launch: Launch) -> Variable:
    decided = launch.environment.get(name)
    kind = "dropped" if decided is None else "overridden"
    outcome = "does not reach the worker" if decided is None else f"reaches the worker as {decided!r}"
    reason = f"{outcome}, whose environment comes from profile {launch.profile.name} alone"
    return Variable(
        name=name,
        value=value,
        kind=kind,
        reason=reason,
        advice=DECIDED.get(name, "nothing, profiles have no key for it"),
    )
