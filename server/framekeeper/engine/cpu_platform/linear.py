"""Linear layers on a CPU: torch's own, on every CPU.

After loading, vllm's `dispatch_cpu_unquantized_gemm` picks a kernel per layer. On a CPU with AMX it packs
small weights with `torch.ops._C.convert_weight_packed`, an operator of vllm's CPU build. The published
wheel is a CUDA build, so the operator is missing and loading fails on exactly the newer CPUs. Torch's
linear uses oneDNN, and with it AMX, by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.nn import functional
from vllm.model_executor.layers import utils

if TYPE_CHECKING:
    import torch


def plain_linear(layer: torch.nn.Module, remove_weight: bool) -> None:  # noqa: ARG001
    """Stand in for vllm's dispatch: same signature, sets `layer.cpu_linear`.

    The weight stays, whatever `remove_weight` says: torch's linear reads it at every call.
    """
    layer.cpu_linear = functional.linear


def install() -> None:
    """Replace vllm's dispatch in this process; harmless when repeated.

    The layers import the function by name at the moment they are loaded
    (vllm/model_executor/layers/linear.py), so replacing the module's attribute reaches all of them.
    """
    utils.dispatch_cpu_unquantized_gemm = plain_linear
