"""Runs in the engine's Python: quantises attention's tensors on a CPU and prints what comes of it as JSON."""

from __future__ import annotations

import json
from types import SimpleNamespace

import torch

from framekeeper.engine.backends.fp8_attention import Fp8FlashAttention, quantize, quantize_attention

torch.manual_seed(1)
values = torch.randn(1, 64, 4, 128, dtype=torch.bfloat16)
values[:, :, 2] *= 1000
eight, scale = quantize(values)
back = eight.float() * scale[:, None, :, None]
broken = values.clone()
broken[0, 0, 1, 0] = float("nan")
hidden, _ = quantize(broken)


def attended(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **more: object) -> torch.Tensor:
    """What the kernel does, in float32."""
    parts = [
        each.float() * more[f"{name}_descale"][:, None, :, None]  # type: ignore[index]
        for name, each in zip("qkv", (q, k, v), strict=True)
    ]
    mixed = torch.nn.functional.scaled_dot_product_attention(*(part.transpose(1, 2) for part in parts))
    return mixed.transpose(1, 2)


layer = Fp8FlashAttention(num_heads=4, head_size=128, softmax_scale=128**-0.5)
Fp8FlashAttention.kernel = staticmethod(attended)
q, k, v = (torch.randn(1, 64, 4, 128) for _ in range(3))
k += 5 * torch.randn(128)  # the same in every key: what is taken out
plain = torch.nn.functional.scaled_dot_product_attention(*(each.transpose(1, 2) for each in (q, k, v)))
metadata = SimpleNamespace(attn_mask=None, full_attn_spans=None, extra={"vsa_dit_seq_shape": (1, 8, 8)})
ours = layer.forward_cuda(q, k, v, metadata)
try:
    block = SimpleNamespace(attn1=SimpleNamespace(attn=SimpleNamespace(attention=object())))
    quantize_attention(SimpleNamespace(transformer=SimpleNamespace(blocks=[block]), transformer_2=None))
    refused = ""
except RuntimeError as error:
    refused = str(error)
print(
    "RESULT "
    + json.dumps(
        {
            "dtype": str(eight.dtype),
            "largest": float(eight.float().abs().max()),
            "error": float((back - values.float()).norm() / values.float().norm()),
            "other_heads_error": float(
                (back - values.float())[:, :, :2].norm() / values.float()[:, :, :2].norm()
            ),
            "nan_stays": bool(hidden[:, :, 1].float().isnan().all()),
            "attention_error": float((ours - plain.transpose(1, 2)).norm() / plain.norm()),
            "refused": refused,
        }
    )
)
