"""From a profile's engine options to the arguments of vllm-omni 0.30's `OmniDiffusionConfig`.

Pure and without torch, so that a wrong option is refused before anything is imported.
"""

from __future__ import annotations

from math import prod
from typing import Any

WORKER_EXTENSION = "framekeeper.engine.backends.denoising.ObservedWorker"

PREFETCH_KEY = "framekeeper_offload_prefetch"
"""Key of `additional_config`, the mapping that vllm-omni carries to its workers without reading it."""

ATTENTION_KEY = "framekeeper_attention_quantization"
"""Another one."""

DEFAULTS: dict[str, Any] = {
    "executor": "in_process",
    "dtype": "bfloat16",
    "attention": None,
    "compile": "off",
    "offload": "none",
    "offload_pin_memory": True,
    "offload_prefetch": "async",
    "quantization": None,
    "attention_quantization": "none",
    "parallel": {},
    "cache": "none",
    "vae": {},
    "boundary_ratio": None,
    "flow_shift": None,
}
"""Values of options that are left out; `device` and `devices` have none."""

CHOICES: dict[str, tuple[Any, ...]] = {
    "device": ("cpu", "cuda"),
    "executor": ("in_process", "multiprocess"),
    "dtype": ("bfloat16", "float16", "float32"),
    "compile": ("off", "regional", "full"),
    "offload": ("none", "model", "layerwise"),
    "offload_prefetch": ("async", "sync"),
    "quantization": (None, "none", "fp8", "int8"),
    "attention_quantization": ("none", "fp8"),
    "cache": ("none", "teacache", "cache_dit"),
}
"""Closed sets. `dtype` is one because vllm-omni takes an unknown name for bfloat16 with a warning."""

PARALLEL = {
    "tensor": "tensor_parallel_size",
    "ulysses": "ulysses_degree",
    "ring": "ring_degree",
    "pipeline": "pipeline_parallel_size",
    "cfg": "cfg_parallel_size",
    "vae": "vae_patch_parallel_size",
    "hsdp": "hsdp_shard_size",
}
"""Degrees by upstream's names. `hsdp` shards weights over ranks that the other degrees already use, or, with
none of them, over ranks of its own; `vae` uses ranks of the group again."""

_CACHES = {"none": "none", "teacache": "tea_cache", "cache_dit": "cache_dit"}


def complete(options: dict[str, Any]) -> dict[str, Any]:
    """`options` with defaults filled in; raises ValueError for an unknown key or a value outside its set."""
    known = {"device", "devices", *DEFAULTS}
    _refuse_unknown("option", set(options) - known)
    for key in ("device", "devices"):
        if key not in options:
            raise ValueError(f"option {key} is missing")
    whole = {**DEFAULTS, **options}
    for key, allowed in CHOICES.items():
        if whole[key] not in allowed:
            shown = ", ".join(map(str, allowed))
            raise ValueError(f"option {key} is {whole[key]!r}; vllm-omni takes one of: {shown}")
    _refuse_unknown("parallel", set(whole["parallel"]) - set(PARALLEL))
    _refuse_unknown("vae", set(whole["vae"]) - {"tiling", "slicing", "fast_path"})
    return whole


def engine_arguments(model: str, options: dict[str, Any]) -> dict[str, Any]:
    """Keyword arguments for `OmniDiffusionConfig.from_kwargs`; raises ValueError as `complete` does.

    Also refused: a group size that the parallel degrees do not fill. vllm-omni would make data-parallel
    copies out of the rest, and one group serves one job at a time.
    """
    whole = complete(options)
    parallel = {name: int(whole["parallel"].get(name, 1)) for name in PARALLEL}
    used = prod(size for name, size in parallel.items() if name not in {"vae", "hsdp"})
    used = max(used, parallel["hsdp"])
    if used != whole["devices"]:
        raise ValueError(
            f"parallel degrees make {used} ranks, devices is {whole['devices']}; make them equal"
        )
    if whole["executor"] == "in_process" and whole["devices"] != 1:
        raise ValueError("executor in_process drives one device; set multiprocess for a group")
    arguments: dict[str, Any] = {
        "model": model,
        "num_gpus": whole["devices"],
        "distributed_executor_backend": "uni" if whole["executor"] == "in_process" else "mp",
        "dtype": whole["dtype"],
        "worker_extension_cls": WORKER_EXTENSION,
        "enforce_eager": whole["compile"] == "off",
        "enable_cpu_offload": whole["offload"] == "model",
        "enable_layerwise_offload": whole["offload"] == "layerwise",
        "pin_cpu_memory": whole["offload_pin_memory"],
        "parallel_config": _parallel_config(parallel),
        "cache_backend": _CACHES[whole["cache"]],
        "vae_use_tiling": bool(whole["vae"].get("tiling", False)),
        "vae_use_slicing": bool(whole["vae"].get("slicing", False)),
        "vae_fast_path": str(whole["vae"].get("fast_path", "lossless")),
        # 8-bit frames leave the device: a quarter of the bytes, and the encoder need not convert them.
        "video_output_transport": {"enable_device_postprocess": True},
        "boundary_ratio": whole["boundary_ratio"],
        "flow_shift": whole["flow_shift"],
        "additional_config": {
            PREFETCH_KEY: whole["offload_prefetch"],
            ATTENTION_KEY: whole["attention_quantization"],
        },
    }
    if whole["compile"] != "off":
        arguments["diffusion_compile_granularity"] = whole["compile"]
    if whole["attention"] not in {None, "auto"}:
        arguments["diffusion_attention_config"] = {"default": {"backend": str(whole["attention"]).upper()}}
    if whole["quantization"] not in {None, "none"}:
        arguments["quantization_config"] = whole["quantization"]
    return arguments


def _parallel_config(parallel: dict[str, int]) -> dict[str, Any]:
    config: dict[str, Any] = {PARALLEL[name]: size for name, size in parallel.items() if name != "hsdp"}
    if parallel["hsdp"] > 1:
        config |= {"use_hsdp": True, PARALLEL["hsdp"]: parallel["hsdp"]}
    return config


def _refuse_unknown(where: str, names: set[str]) -> None:
    if names:
        raise ValueError(f"unknown {where}: {', '.join(sorted(names))}")
