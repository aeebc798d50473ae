"""A checkpoint of Wan2.2-T2V-A14B's shape with random weights: `checkpoint.py DIRECTORY [--layers N]`.

Transformer and autoencoder have the real model's sizes, so speed and memory are true; its videos are noise.
Three things are smaller than the real model's: the text encoder has 2 of 24 layers and the vocabulary of the
tiny checkpoint, and the second transformer is a link to the first one's files (both are loaded).
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKLWan, WanTransformer3DModel
from safetensors.torch import save_file
from transformers import UMT5Config, UMT5EncoderModel

from framekeeper.checkpoint.tiny import make_tiny

TEXT_LAYERS = 2
SHARD_BYTES = 2 * 10**9


def device() -> str:
    """Random numbers are made where that is fast."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def fill(name: str, value: torch.Tensor) -> torch.Tensor:
    """A random tensor that keeps activations at unit size; see framekeeper.checkpoint.tiny."""
    shape = tuple(value.shape)
    if name.endswith("bias"):
        return torch.zeros(shape, device=device())
    if "norm" in name or name.endswith("gamma"):
        return torch.ones(shape, device=device())
    inputs = math.prod(shape[1:]) if len(shape) > 1 else shape[0]
    return (torch.rand(shape, device=device()) * 2 - 1) * math.sqrt(3 / max(1, inputs))


def write_transformer(target: Path, layers: int, width: int) -> int:
    """One expert in shards; returns its bytes."""
    heads = width // 128
    with torch.device("meta"):
        model = WanTransformer3DModel(
            patch_size=(1, 2, 2),
            num_attention_heads=heads,
            attention_head_dim=128,
            in_channels=16,
            out_channels=16,
            text_dim=4096,
            freq_dim=256,
            ffn_dim=13824 * heads // 40,
            num_layers=layers,
            cross_attn_norm=True,
            qk_norm="rms_norm_across_heads",
            eps=1e-6,
            image_dim=None,
            added_kv_proj_dim=None,
            rope_max_seq_len=1024,
            pos_embed_seq_len=None,
        )
    model.save_config(target)
    shards: list[dict[str, torch.Tensor]] = [{}]
    size = total = 0
    for name, value in model.state_dict().items():
        if size > SHARD_BYTES:
            shards.append({})
            size = 0
        shards[-1][name] = value
        size += 2 * value.numel()
        total += 2 * value.numel()
    where = {}

    def write(number: int) -> None:
        file = f"diffusion_pytorch_model-{number + 1:05}-of-{len(shards):05}.safetensors"
        tensors = {name: fill(name, each).to("cpu", torch.bfloat16) for name, each in shards[number].items()}
        where.update(dict.fromkeys(tensors, file))
        save_file(tensors, target / file, metadata={"format": "pt"})

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(len(shards))))
    index = {"metadata": {"total_size": total}, "weight_map": where}
    (target / "diffusion_pytorch_model.safetensors.index.json").write_text(json.dumps(index))
    return total


def write_text_encoder(target: Path, vocabulary: int) -> None:
    """UMT5-XXL's widths, few layers."""
    with torch.device(device()):
        encoder: Any = UMT5EncoderModel(
            UMT5Config(
                vocab_size=vocabulary,
                d_model=4096,
                d_kv=64,
                d_ff=10240,
                num_layers=TEXT_LAYERS,
                num_heads=64,
                num_decoder_layers=TEXT_LAYERS,
                feed_forward_proj="gated-gelu",
                is_encoder_decoder=True,
                tie_word_embeddings=False,
                pad_token_id=0,
                eos_token_id=1,
            )
        )
    encoder.to(torch.bfloat16).save_pretrained(target)


def write_vae(target: Path) -> None:
    """The real autoencoder's configuration (diffusers' defaults), in float32 as it is published."""
    vae = AutoencoderKLWan().float()
    with torch.no_grad():
        for name, parameter in vae.named_parameters():
            parameter.copy_(fill(name, parameter))
        vae.decoder.conv_out.weight.mul_(0.375)  # so that pixels are not clipped
    vae.save_pretrained(target)


def main() -> None:
    """Write it and say how long that took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--layers", type=int, default=40)
    parser.add_argument("--width", type=int, default=5120, help="a multiple of 128; the real one is 5120")
    arguments = parser.parse_args()
    target: Path = arguments.directory
    began = time.monotonic()
    torch.manual_seed(0)
    make_tiny(target)
    for part in ("transformer", "transformer_2", "vae", "text_encoder"):
        shutil.rmtree(target / part)
    vocabulary = len(json.loads((target / "tokenizer" / "tokenizer.json").read_text())["model"]["vocab"])
    write_text_encoder(target / "text_encoder", vocabulary)
    write_vae(target / "vae")
    (target / "transformer").mkdir()
    size = write_transformer(target / "transformer", arguments.layers, arguments.width)
    (target / "transformer_2").symlink_to("transformer")
    seconds = time.monotonic() - began
    print(f"{target}: {arguments.layers} layers, {size / 1e9:.2f} GB an expert, {seconds:.1f} s")


if __name__ == "__main__":
    main()
