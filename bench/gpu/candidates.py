"""Changes to the engine that are timed before they are made; profiles.ENGINES names them under `changes`."""

from __future__ import annotations

from typing import Any


def fused_rotary() -> None:
    """In compiled blocks the rotary embedding is PyTorch's operations, not the kernel of flash-attn.

    So Inductor can do it in the pass over memory that quantises queries and keys.
    """
    import torch  # noqa: PLC0415
    from vllm_omni.diffusion.layers.rope import RotaryEmbeddingWan  # noqa: PLC0415

    kernel = RotaryEmbeddingWan.forward_cuda

    def forward_cuda(self: Any, *arguments: Any, **more: Any) -> Any:
        if torch.compiler.is_compiling():
            return self.forward_native(*arguments, **more)
        return kernel(self, *arguments, **more)

    RotaryEmbeddingWan.forward_cuda = forward_cuda
