"""Self-attention with queries, keys and values in fp8 (e4m3), by the kernels of FlashAttention 3.

vllm-omni 0.30 quantises attention on NPUs only (`FlashAttentionImpl._supported_kv_cache_dtypes`); the fa3-fwd
package that it uses on Hopper cards has the fp8 kernels. One scale a head and tensor. The mean of the keys is
taken out first: it adds the same to all scores of a query, so that softmax does not see it, and what is left
needs a smaller range (https://arxiv.org/abs/2410.02367, 4.2). Cross-attention stays as it is: its sequences
are short, upstream says that nothing is won there.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from vllm_omni.diffusion.attention.backends.flash_attn import FlashAttentionImpl

#: The largest finite value of e4m3.
LARGEST = 448.0


def quantize(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """`values` (batch, tokens, heads, width) as float8_e4m3fn, and their scales, (batch, heads) in float32.

    A head that holds a value that is not finite comes out as NaN: it must not be hidden.
    """
    scale = (values.abs().amax(dim=(1, 3)).float() / LARGEST).clamp_min(1e-12)
    return (values.float() / scale[:, None, :, None]).to(torch.float8_e4m3fn), scale


class Fp8FlashAttention(FlashAttentionImpl):  # type: ignore[misc]  # vllm-omni has no types
    """Upstream's own, but for plain, dense attention. `kernel` is fa3-fwd's `flash_attn_func`."""

    kernel: Any = None

    def forward_cuda(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_metadata: Any = None
    ) -> torch.Tensor:
        """See upstream; masks and packed sequences are left to it. Returns query's shape, in bfloat16."""
        if attn_metadata is not None and (
            attn_metadata.attn_mask is not None
            or attn_metadata.full_attn_spans is not None
            or "cu_seqlens_q" in attn_metadata.extra
        ):
            result: torch.Tensor = super().forward_cuda(query, key, value, attn_metadata)
            return result
        query, query_scale = quantize(query)
        key, key_scale = quantize(key - key.mean(dim=1, keepdim=True))
        value, value_scale = quantize(value)
        attended: torch.Tensor = self.kernel(
            query,
            key,
            value,
            softmax_scale=self.softmax_scale,
            causal=self.causal,
            q_descale=query_scale,
            k_descale=key_scale,
            v_descale=value_scale,
        )
        return attended[0] if isinstance(attended, tuple) else attended


def quantize_attention(pipeline: Any) -> int:
    """Change the self-attention of every block of a loaded pipeline; returns how many there were.

    Raises RuntimeError where a block has another kernel than FlashAttention, and ImportError without fa3-fwd:
    not silently unquantised.
    """
    changed = 0
    for expert in (pipeline.transformer, pipeline.transformer_2):
        for block in expert.blocks if expert is not None else ():
            attention = block.attn1.attn.attention
            if type(attention) is not FlashAttentionImpl:
                raise RuntimeError(
                    f"attention_quantization fp8 needs FlashAttention 3, and a block has "
                    f"{type(attention).__name__}; set attention: flash_attn, or attention_quantization: none"
                )
            Fp8FlashAttention.kernel = staticmethod(import_module("fa3_fwd_interface").flash_attn_func)
            attention.__class__ = Fp8FlashAttention
            changed += 1
    return changed
