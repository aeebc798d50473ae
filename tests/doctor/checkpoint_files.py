"""Checkpoints to test with: a small Wan2.2 model, written byte by byte, and ways to break it."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any

from framekeeper.doctor.weights.header import BITS
from framekeeper.doctor.weights.wan import expected

CONFIG: dict[str, Any] = {
    "_class_name": "WanTransformer3DModel",
    "num_attention_heads": 2,
    "attention_head_dim": 16,
    "ffn_dim": 64,
    "num_layers": 2,
    "in_channels": 16,
    "out_channels": 16,
    "text_dim": 32,
    "freq_dim": 16,
    "patch_size": [1, 2, 2],
    "qk_norm": "rms_norm_across_heads",
    "cross_attn_norm": True,
}
LAYER = "blocks.0.ffn.net.2"
"""A layer whose matrix is not square: 32x64."""

Spec = tuple[str, tuple[int, ...], bytes]
"""Type, shape and bytes of a tensor."""


def zeros(dtype: str, *shape: int) -> Spec:
    return dtype, shape, bytes(math.prod(shape) * BITS[dtype] // 8)


def ones(dtype: str, *shape: int) -> Spec:
    one = {"BF16": b"\x80\x3f", "F32": struct.pack("<f", 1.0), "F8_E4M3": b"\x7e", "I8": b"\x7f"}[dtype]
    return dtype, shape, one * math.prod(shape)


def floats(*values: float, shape: tuple[int, ...] | None = None) -> Spec:
    return "F32", (len(values),) if shape is None else shape, struct.pack(f"<{len(values)}f", *values)


def write(path: Path, tensors: dict[str, Spec], *, sparse: bool = False) -> None:
    """A safetensors file; `sparse` writes the header only and extends the file to its size."""
    header, position = {}, 0
    for name, (dtype, shape, _) in tensors.items():
        size = math.prod(shape) * BITS[dtype] // 8
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [position, position + size]}
        position += size
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        if sparse:
            file.truncate(8 + len(text) + position)
        else:
            for _, _, content in tensors.values():
                file.write(content)


def write_raw(path: Path, header: Any, data: bytes = b"") -> None:
    """A file with any header, also one that is wrong."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def write_json(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")


def transformer(dtype: str = "BF16", fill: int = 0) -> dict[str, Spec]:
    """All tensors of CONFIG; `fill` makes two experts differ."""
    tensors = {name: ones(dtype, *shape) for name, shape in expected(CONFIG).items()}
    first = tensors["proj_out.weight"]
    tensors["proj_out.weight"] = (*first[:2], bytes([fill, 0x3F]) + first[2][2:])
    return tensors


def quantised(dtype: str = "F8_E4M3", *, channels: bool = False, fill: int = 0) -> dict[str, Spec]:
    """The same with the blocks' matrices in 8 bits and a scale for each."""
    tensors = transformer(fill=fill)
    for name in [each for each in tensors if each.startswith("blocks.") and each.endswith(".weight")]:
        shape = tensors[name][1]
        if len(shape) == 2:
            tensors[name] = ones(dtype, *shape)
            scales = floats(*[0.01] * shape[0], shape=(shape[0], 1)) if channels else floats(0.01)
            tensors[f"{name}_scale"] = scales
    return tensors


def model(directory: Path, tensors: dict[str, Spec] | None = None, **config: Any) -> Path:
    """A whole folder of two experts; `tensors` is in both, `config` is added to both configurations."""
    pairs = {
        "transformer": ["diffusers", "WanTransformer3DModel"],
        "transformer_2": ["diffusers", "WanTransformer3DModel"],
        "vae": ["diffusers", "AutoencoderKLWan"],
        "text_encoder": ["transformers", "UMT5EncoderModel"],
        "tokenizer": ["transformers", "T5TokenizerFast"],
    }
    write_json(
        directory / "model_index.json", {"_class_name": "WanPipeline", "boundary_ratio": 0.875, **pairs}
    )
    write_json(directory / "tokenizer" / "tokenizer_config.json", {})
    write_json(directory / "tokenizer" / "tokenizer.json", {})
    for index, name in enumerate(("transformer", "transformer_2")):
        write_json(directory / name / "config.json", {**CONFIG, **config})
        content = dict(tensors) if tensors is not None else transformer()
        dtype, shape, data = content["proj_out.weight"]
        content["proj_out.weight"] = (dtype, shape, bytes([index]) + data[1:])
        write(directory / name / "diffusion_pytorch_model.safetensors", content)
    for name in ("vae", "text_encoder"):
        write_json(directory / name / "config.json", {})
        write(directory / name / "model.safetensors", {"weight": ones("F32", 4, 4)})
    return directory


def change(directory: Path, changes: dict[str, Spec | None], base: dict[str, Spec] | None = None) -> Path:
    """Write both experts anew with some tensors changed, added or (None) left out."""
    for index, name in enumerate(("transformer", "transformer_2")):
        content = dict(base or transformer(fill=index))
        for tensor, spec in changes.items():
            content.pop(tensor, None)
            if spec is not None:
                content[tensor] = spec
        write(directory / name / "diffusion_pytorch_model.safetensors", content)
    return directory
