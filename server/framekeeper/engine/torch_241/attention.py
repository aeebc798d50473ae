"""Attention by torch's scaled_dot_product_attention, through vllm-omni 0.14's own SDPA backend."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm_omni.diffusion.attention.backends.sdpa import SDPABackend, SDPAImpl

if TYPE_CHECKING:
    import torch


class NativeAttention(SDPAImpl):  # type: ignore[misc]
    """Upstream's SDPA with a forward for our platform.

    `AttentionImpl.forward` (vllm_omni/diffusion/attention/backends/abstract.py, 0.14.0) raises
    NotImplementedError on a platform that is none of upstream's. What it calls `forward_cuda` is plain torch.
    """

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_metadata: Any = None,
    ) -> torch.Tensor:
        """Attention of `query` (batch, tokens, heads, head size) over `key` and `value`; same shape out."""
        output: torch.Tensor = self.forward_cuda(query, key, value, attn_metadata)
        return output


class NativeAttentionBackend(SDPABackend):  # type: ignore[misc]
    """Names the implementation above; everything else is upstream's."""

    @staticmethod
    def get_impl_cls() -> type[NativeAttention]:
        """The class that vllm-omni instantiates per attention layer."""
        return NativeAttention
