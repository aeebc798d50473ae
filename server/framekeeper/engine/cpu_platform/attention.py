"""Attention on a CPU: torch's scaled_dot_product_attention through upstream's own SDPA backend."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm_omni.diffusion.attention.backends.sdpa import SDPABackend, SDPAImpl

if TYPE_CHECKING:
    import torch


class CpuSdpaAttention(SDPAImpl):  # type: ignore[misc]
    """Upstream's SDPA with a forward for a platform that is none of upstream's.

    `AttentionImpl.forward` (vllm_omni/diffusion/attention/backends/abstract.py, 0.30.0) has no branch for
    out-of-tree platforms and raises NotImplementedError.
    """

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_metadata: Any = None,
    ) -> torch.Tensor:
        """Attention of `query` (batch, tokens, heads, head size) over `key` and `value`; same shape out."""
        output: torch.Tensor = self._forward_impl(query, key, value, attn_metadata, mask_mode="broadcast_k")
        return output


class CpuSdpaBackend(SDPABackend):  # type: ignore[misc]
    """Names the implementation above; everything else is upstream's."""

    @staticmethod
    def get_impl_cls() -> type[CpuSdpaAttention]:
        """The class that vllm-omni instantiates per attention layer."""
        return CpuSdpaAttention
