"""Attention by torch's scaled_dot_product_attention, through vllm-omni 0.14's own SDPA backend."""

from __future__ import annotations

from vllm_omni.diffusion.attention.backends.sdpa import SDPABackend, SDPAImpl

BACKEND = f"{SDPABackend.__module__}.{SDPABackend.__qualname__}"
"""What the platform names as its attention."""


def install() -> None:
    """Give upstream's SDPA a forward on our platform, in this process; harmless when repeated.

    `AttentionImpl.forward` (vllm_omni/diffusion/attention/backends/abstract.py, 0.14.0) raises
    NotImplementedError on a platform that is none of upstream's. What it calls `forward_cuda` is plain torch.
    Replaced in upstream's class and not in one of ours, because every attention layer also makes an instance
    of upstream's for float32 (diffusion/attention/layer.py).
    """
    SDPAImpl.forward = SDPAImpl.forward_cuda
