"""What the card itself can do: `ceilings.py MODEL OUT [WHAT…]`. Appends lines of JSON to OUT.

Matrix products in bf16 and fp8, in a burst and for as long as a step lasts, copies, attention in both types
with its error, and decoding by dtype, layout and tiling with its error against float32 in whole frames. WHAT:
products, linear, sustained, copies, attention, decoding; all without it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from vllm_omni.diffusion.distributed.autoencoders.autoencoder_kl_wan import OmniAutoencoderKLWan
from vllm_omni.diffusion.distributed.autoencoders.wan_vae_fastpath import install_wan_vae_fastpath

from framekeeper.engine.backends.fp8_attention import quantize

HEADS, WIDTH = 40, 128
TOKENS = {"832x480": 32_760, "1280x720": 75_600}
SIZES = {"832x480": (60, 104), "1280x720": (90, 160)}


def milliseconds(work: Callable[[], Any], rounds: int = 10) -> float:
    """Median of `rounds`, after two that are not counted."""
    times = []
    for turn in range(rounds + 2):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        work()
        end.record()
        end.synchronize()
        if turn >= 2:
            times.append(begin.elapsed_time(end))
    return sorted(times)[len(times) // 2]


def error(value: torch.Tensor, reference: torch.Tensor) -> float:
    """Relative, of all elements together."""
    return float((value.double() - reference.double()).norm() / reference.double().norm())


def products() -> dict[str, Any]:
    """TFLOP/s of matrix products: a square, and the feed-forward of one block at 1280x720."""
    found: dict[str, Any] = {}
    for name, (m, k, n) in {"square": (8192, 8192, 8192), "feed_forward": (75_600, 5120, 13_824)}.items():
        a = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
        b = torch.randn(n, k, device="cuda", dtype=torch.bfloat16)
        ms = milliseconds(lambda a=a, b=b: a @ b.T)
        found[f"bf16_{name}_tflops"] = round(2 * m * k * n / ms / 1e9, 1)
        a8, b8 = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn)
        one = torch.ones((), device="cuda")
        ms = milliseconds(
            lambda a=a8, b=b8, s=one: torch._scaled_mm(
                a, b.T, scale_a=s, scale_b=s, out_dtype=torch.bfloat16, use_fast_accum=True
            )
        )
        found[f"fp8_{name}_tflops"] = round(2 * m * k * n / ms / 1e9, 1)
    return found


def linear() -> dict[str, Any]:
    """TFLOP/s of a block's fp8 products at 1280x720 by vllm's CUTLASS kernel, a scale a token."""
    from vllm import _custom_ops as ops  # noqa: PLC0415  only here

    found: dict[str, Any] = {}
    for name, (k, n) in {
        "qkv": (5120, 15_360),
        "out": (5120, 5120),
        "up": (5120, 13_824),
        "down": (13_824, 5120),
    }.items():
        m = TOKENS["1280x720"]
        a = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
        b = torch.randn(n, k, device="cuda", dtype=torch.bfloat16).to(torch.float8_e4m3fn)
        bias = torch.randn(n, device="cuda", dtype=torch.bfloat16)
        a8, scales = ops.scaled_fp8_quant(a, use_per_token_if_dynamic=True)
        one = torch.ones(1, device="cuda")
        ms = milliseconds(
            lambda a=a8, b=b, s=scales, o=one, c=bias: ops.cutlass_scaled_mm(
                a, b.T, scale_a=s, scale_b=o, out_dtype=torch.bfloat16, bias=c
            )
        )
        found[f"{name}_tflops"] = round(2 * m * k * n / ms / 1e9)
        found[f"{name}_quantising_ms"] = round(
            milliseconds(lambda a=a: ops.scaled_fp8_quant(a, use_per_token_if_dynamic=True)), 3
        )
    return found


def sustained(seconds: float = 20.0) -> dict[str, Any]:
    """TFLOP/s of the square bf16 product at the end of so many seconds, with the card's clock and power then.

    A step at 1280x720 lasts 20 s and the card's power is limited, so this and not the burst bounds a job.
    """
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    rates: list[float] = []
    states: list[str] = []
    began = time.monotonic()
    while (at := time.monotonic() - began) < seconds:
        query = "--query-gpu=clocks.sm,power.draw,power.limit,clocks_event_reasons.active,temperature.gpu"
        telling = subprocess.Popen(
            ["nvidia-smi", query, "--format=csv,noheader,nounits"], stdout=subprocess.PIPE, text=True
        )
        ms = milliseconds(lambda: [a @ b.T for _ in range(20)], 40) / 20
        rates.append(round(2 * 8192**3 / ms / 1e9, 1))
        states.append(f"{at:.0f} s: {telling.communicate()[0].strip()}")
    return {"seconds": seconds, "bf16_square_tflops": rates, "clock_power_limit_reasons_temperature": states}


def copies() -> dict[str, Any]:
    """GB/s: within the card (bytes read and written), and from page-locked memory."""
    a = torch.empty(4 * 2**30, dtype=torch.uint8, device="cuda").random_()
    b = torch.empty_like(a)
    inside = 2 * a.numel() / milliseconds(lambda: b.copy_(a)) / 1e6
    host = torch.empty(2**30, dtype=torch.uint8, pin_memory=True)
    across = host.numel() / milliseconds(lambda: b[: 2**30].copy_(host, non_blocking=True)) / 1e6
    return {"copy_gb_per_second": round(inside), "host_to_device_gb_per_second": round(across, 1)}


def attention(size: str) -> dict[str, Any]:
    """One self-attention of A14B at this size, in bf16 and in fp8."""
    kernel = import_module("fa3_fwd_interface").flash_attn_func
    shape = (1, TOKENS[size], HEADS, WIDTH)
    q, k, v = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    work = 4 * TOKENS[size] ** 2 * HEADS * WIDTH
    plain = milliseconds(lambda: kernel(q, k, v), 5)
    small = torch.compile(quantize)
    (q8, qs), (k8, ks), (v8, vs) = (small(each) for each in (q, k, v))
    quantising = milliseconds(lambda: [small(each) for each in (q, k, v)], 5)
    scales = {"q_descale": qs, "k_descale": ks, "v_descale": vs}
    eight = milliseconds(lambda: kernel(q8, k8, v8, **scales), 5)
    by_cudnn: float | str
    try:
        with sdpa_kernel([SDPBackend.CUDNN_ATTENTION]):
            moved = [each.transpose(1, 2) for each in (q, k, v)]
            by_cudnn = work / milliseconds(lambda: scaled_dot_product_attention(*moved), 5) / 1e9
    except RuntimeError as failure:
        by_cudnn = str(failure)[:200]
    reference = scaled_dot_product_attention(
        q[:, :512].float().transpose(1, 2), k.float().transpose(1, 2), v.float().transpose(1, 2)
    ).transpose(1, 2)
    return {
        "size": size,
        "bf16_ms": round(plain, 2),
        "bf16_tflops": round(work / plain / 1e9),
        "cudnn_bf16_tflops": by_cudnn,
        "fp8_ms": round(eight, 2),
        "fp8_tflops": round(work / eight / 1e9),
        "quantising_ms": round(quantising, 2),
        "bf16_error": error(kernel(q, k, v)[:, :512], reference),
        "fp8_error": error(kernel(q8, k8, v8, **scales)[:, :512], reference),
    }


def decoding(model: str, size: str, reference: dict[str, torch.Tensor], **how: Any) -> dict[str, Any]:
    """Decode 81 frames one way; `reference` keeps the first result of a size."""
    torch.cuda.empty_cache()
    vae = OmniAutoencoderKLWan.from_pretrained(model, subfolder="vae", torch_dtype=how["dtype"]).cuda().eval()
    install_wan_vae_fastpath(vae, level=how["fast_path"])
    if how["tiling"]:
        vae.enable_tiling()
    torch.manual_seed(3)
    latents = torch.randn(1, 16, 21, *SIZES[size], device="cuda").to(how["dtype"])
    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated()
    seconds = []
    with torch.inference_mode():
        for _ in range(2):
            torch.cuda.synchronize()
            began = time.monotonic()
            frames = vae.decode(latents, return_dict=False)[0]
            torch.cuda.synchronize()
            seconds.append(round(time.monotonic() - began, 2))
    peak = torch.cuda.max_memory_allocated() - held
    found = frames.float().cpu()
    base = reference.setdefault(size, found)
    squares = float((found - base).square().mean())
    return {
        "size": size,
        **{key: str(value).removeprefix("torch.") for key, value in how.items()},
        "seconds_first_and_second": seconds,
        "peak_gb": round(peak / 1e9, 2),
        "reserved_gb": round(torch.cuda.max_memory_reserved() / 1e9, 2),
        # Of the range -1..1.
        "psnr_db": round(10 * float(torch.log10(torch.tensor(4 / squares))), 1) if squares else None,
        "output": str(frames.dtype),
    }


def main(model: str, out: str, *wanted: str) -> None:
    """Everything, each in its own line; what fails says so and the rest goes on."""
    ways = [
        ("832x480", torch.float32, "lossless", False),
        ("832x480", torch.float32, "lossless", True),
        ("832x480", torch.bfloat16, "off", True),
        ("832x480", torch.bfloat16, "lossless", True),
        ("832x480", torch.bfloat16, "lossless", False),
        ("832x480", torch.bfloat16, "channels_last", False),
        ("1280x720", torch.bfloat16, "lossless", False),
        ("1280x720", torch.bfloat16, "channels_last", False),
        ("1280x720", torch.bfloat16, "channels_last", True),
    ]
    reference: dict[str, torch.Tensor] = {}
    todo: list[tuple[str, Callable[[], dict[str, Any]]]] = [
        ("products", products),
        ("linear", linear),
        ("copies", copies),
        *(("attention", lambda size=size: attention(size)) for size in TOKENS),
        ("sustained", sustained),
        *(
            (
                "decoding",
                lambda s=size, d=dtype, f=fast, t=tiling: decoding(
                    model, s, reference, dtype=d, fast_path=f, tiling=t
                ),
            )
            for size, dtype, fast, tiling in ways
        ),
    ]
    for what, work in todo:
        if wanted and what not in wanted:
            continue
        try:
            found = work()
        except Exception as failure:
            found = {"error": f"{type(failure).__name__}: {failure}"[:600]}
        torch.cuda.empty_cache()
        with Path(out).open("a") as file:
            file.write(json.dumps({"what": what, **found}) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
