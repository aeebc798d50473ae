"""One tiny call of each matrix kernel on each card, held against plain torch in float32.

What a build says it supports is known to be wrong; only a call tells. The calls are well-formed: column-major
second operand, 16-byte alignment, K and N multiples of 16, scales on the device, because
`torch.ops._C.cutlass_scaled_mm` ends the CUDA context on others. Options: `device`, `cutlass` (whether this
runtime has vllm's kernels).
"""

# ruff: noqa: PLC0415  A probe is asked before it imports what may end it.

from __future__ import annotations

from functools import partial
from typing import Any

from framekeeper.doctor.probes.answer import attempt, options

_M, _K, _N = 64, 128, 96


def error(result: Any, expected: Any) -> float:
    """Relative error (Frobenius). Raises RuntimeError where the result holds NaN or infinity."""
    if not bool(result.isfinite().all()):
        raise RuntimeError("the result holds NaN or infinity")
    return float((result.float() - expected).norm() / expected.norm())


def within(found: float, most: float) -> str:
    """The error as words. Raises RuntimeError above `most`."""
    if found > most:
        raise RuntimeError(f"the relative error is {found:.3g}, at most {most} is right")
    return f"relative error {found:.2g}"


def matrix(dtype: Any, device: str, most: float) -> str:
    """A plain product in `dtype`."""
    import torch

    a = torch.randn(_M, _K, device=device)
    b = torch.randn(_K, _N, device=device)
    low = a.to(dtype), b.to(dtype)
    return within(error(low[0] @ low[1], low[0].float() @ low[1].float()), most)


def scaled(kind: str, device: str) -> str:
    """`cutlass_scaled_mm` of fp8 or int8, scales per token and channel. Raises where it is not there."""
    import torch

    if not hasattr(torch.ops._C, "cutlass_scaled_mm"):
        raise RuntimeError("torch.ops._C.cutlass_scaled_mm is not there")
    dtype = torch.float8_e4m3fn if kind == "fp8" else torch.int8
    most = 448.0 if kind == "fp8" else 127.0
    a = torch.randn(_M, _K, device=device)
    b = torch.randn(_N, _K, device=device)
    scale_a = (a.abs().amax(1, keepdim=True) / most).float()
    scale_b = (b.abs().amax(1, keepdim=True) / most).float()

    def low(value: Any) -> Any:
        return value.to(dtype) if kind == "fp8" else value.round().clamp(-127, 127).to(dtype)

    low_a, low_b = low(a / scale_a), low(b / scale_b)
    out = torch.empty(_M, _N, dtype=torch.bfloat16, device=device)
    torch.ops._C.cutlass_scaled_mm(out, low_a, low_b.t(), scale_a, scale_b.t().contiguous(), None)
    torch.cuda.synchronize()
    expected = (low_a.float() * scale_a) @ (low_b.float() * scale_b).t()
    return within(error(out, expected), 0.02)


def main() -> None:
    """One line for each kernel and card."""
    wanted = options()
    import torch

    torch.manual_seed(0)
    cards = range(torch.cuda.device_count()) if wanted["device"] == "cuda" else [None]
    if wanted["cutlass"]:
        attempt("load cutlass", _load)
    for card in cards:
        device = "cpu" if card is None else f"cuda:{card}"
        if card is not None:
            torch.cuda.set_device(card)
        for name in ("float32", "bfloat16"):
            attempt(f"matrix {name} on {device}", partial(matrix, getattr(torch, name), device, 0.01))
        if wanted["cutlass"]:
            for kind in ("fp8", "int8"):
                attempt(f"cutlass_scaled_mm {kind} on {device}", partial(scaled, kind, device))


def _load() -> str:
    import vllm._C_stable_libtorch  # noqa: F401

    return "vllm's kernels are loaded"


if __name__ == "__main__":
    main()
