"""Which attention kernels really run here: a small call of each, held against torch's plain arithmetic.

Options: `device`, `omni` (whether vllm-omni's own backends are tried, too), `dtype`.
"""

# ruff: noqa: PLC0415  A probe is asked before it imports what may end it.

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from framekeeper.doctor.probes.answer import attempt, options
from framekeeper.doctor.probes.kernels import error, within

_BATCH, _TOKENS, _HEADS, _SIZE = 1, 128, 4, 128
# bfloat16 keeps 8 bits; SageAttention computes the scores in int8.
_MOST = {"SAGE_ATTN": 0.08}
_OMNI = {"cpu": ("TORCH_SDPA",), "cuda": ("FLASH_ATTN", "TORCH_SDPA", "SAGE_ATTN")}


def sdpa(query: Any, key: Any, value: Any) -> Any:
    """torch's attention of (batch, tokens, heads, size)."""
    from torch.nn.functional import scaled_dot_product_attention

    heads_first = [each.transpose(1, 2) for each in (query, key, value)]
    return scaled_dot_product_attention(*heads_first).transpose(1, 2)


def torch_kernel(kind: str) -> Callable[[Any, Any, Any], Any]:
    """torch's attention, held to one of its kernels. Raises RuntimeError when called where it has none."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def call(query: Any, key: Any, value: Any) -> Any:
        with sdpa_kernel([getattr(SDPBackend, kind)]):
            return sdpa(query, key, value)

    return call


def platform(device: str) -> str:
    """Import vllm-omni as the worker does. Raises RuntimeError where it finds another kind of device."""
    from vllm_omni.plugins import load_omni_general_plugins

    load_omni_general_plugins()
    from vllm_omni.platforms import current_omni_platform

    if current_omni_platform.device_type != device:
        raise RuntimeError(
            f"vllm-omni found {current_omni_platform.device_type or 'no device'}, not {device}"
        )
    return f"its platform is {type(current_omni_platform).__name__}"


def omni(name: str) -> Callable[[Any, Any, Any], Any]:
    """vllm-omni's backend of this name, as its attention layers call it."""
    from vllm_omni.diffusion.attention.backends.registry import DiffusionAttentionBackendEnum

    kind = DiffusionAttentionBackendEnum[name].get_class()
    if name == "TORCH_SDPA":
        kind = _of_platform(kind)
    kernel = kind.get_impl_cls()(
        num_heads=_HEADS, head_size=_SIZE, softmax_scale=_SIZE**-0.5, causal=False, num_kv_heads=_HEADS
    )
    return lambda query, key, value: kernel.forward(query, key, value, None)


def _of_platform(kind: Any) -> Any:
    from vllm_omni.platforms import current_omni_platform

    if current_omni_platform.device_type != "cpu":
        return kind
    from framekeeper.engine.cpu_platform.attention import CpuSdpaBackend

    return CpuSdpaBackend


def tried(kernel: Callable[[], Callable[[Any, Any, Any], Any]], device: str, dtype: Any, most: float) -> str:
    """One call of the kernel; returns its error as words."""
    import torch

    query, key, value = (
        torch.randn(_BATCH, _TOKENS, _HEADS, _SIZE, device=device, dtype=dtype) for _ in range(3)
    )
    scores = torch.einsum("bqhd,bkhd->bhqk", query.float(), key.float()) * _SIZE**-0.5
    expected = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), value.float())
    return within(error(kernel()(query, key, value), expected), most)


def main() -> None:
    """One line for each kernel."""
    wanted = options()
    import torch

    torch.manual_seed(0)
    device, dtype = wanted["device"], getattr(torch, wanted["dtype"])
    kinds = ["MATH", "FLASH_ATTENTION"]
    if device == "cuda":
        kinds += ["EFFICIENT_ATTENTION", "CUDNN_ATTENTION"]
    for kind in kinds:
        attempt(f"torch {kind}", partial(tried, partial(torch_kernel, kind), device, dtype, 0.02))
    if not wanted["omni"]:
        return
    if not attempt("vllm-omni", partial(platform, device)):
        return
    for name in _OMNI[device]:
        attempt(
            f"vllm-omni {name}", partial(tried, partial(omni, name), device, dtype, _MOST.get(name, 0.02))
        )


if __name__ == "__main__":
    main()
