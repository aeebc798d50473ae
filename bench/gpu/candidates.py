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


def own_shape_first() -> None:
    """Upstream's dummy run is not compiled, so compiled blocks see the warm-up's shape first.

    The dummy run is a picture of 512x512. Inductor lays out reductions for the shapes that it sees first and
    times kernels on them, also where shapes are dynamic; at 1280x720x81, with forty times the tokens, a mean
    over the keys took 1.24 ms where its bytes take 0.2.
    """
    import torch  # noqa: PLC0415

    from framekeeper.engine.backends.denoising import ObservedWorker  # noqa: PLC0415

    execute = ObservedWorker.execute_model

    def execute_model(self: Any, req: Any, *arguments: Any, **more: Any) -> Any:
        if not req.is_dummy_run():
            return execute(self, req, *arguments, **more)
        with torch.compiler.set_stance("force_eager"):
            return execute(self, req, *arguments, **more)

    ObservedWorker.execute_model = execute_model  # type: ignore[method-assign]


def sampled_mean() -> None:
    """The fp8 attention takes the mean of every 16th key: softmax does not see which vector is taken out."""
    from framekeeper.engine.backends import fp8_attention  # noqa: PLC0415

    def forward_cuda(self: Any, query: Any, key: Any, value: Any, attn_metadata: Any = None) -> Any:
        del attn_metadata  # a dense video has none
        query, query_scale = fp8_attention.quantize(query)
        key, key_scale = fp8_attention.quantize(key - key[:, ::16].mean(dim=1, keepdim=True))
        value, value_scale = fp8_attention.quantize(value)
        attended = self.kernel(
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

    fp8_attention.Fp8FlashAttention.forward_cuda = forward_cuda  # type: ignore[method-assign]
