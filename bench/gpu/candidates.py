"""Changes to the engine that are timed before they are made; profiles.ENGINES names them under `changes`."""

from __future__ import annotations

from typing import Any


def fused_quantising() -> None:
    """In compiled blocks inputs of fp8 linear layers are quantised by PyTorch operations, not vllm's kernel.

    So Inductor can do it in the pass over memory that makes those inputs (normalisation, GELU).
    """
    import torch  # noqa: PLC0415  after the environment is set
    from vllm.model_executor.layers.quantization.input_quant_fp8 import QuantFP8  # noqa: PLC0415

    kernel = QuantFP8.forward_cuda

    def forward_cuda(self: Any, *arguments: Any, **more: Any) -> Any:
        if torch.compiler.is_compiling():
            return self.forward_native(*arguments, **more)
        return kernel(self, *arguments, **more)

    QuantFP8.forward_cuda = forward_cuda
