"""A Wan2.2-shaped checkpoint of a few megabytes with random weights, for machines without a GPU.

Same layout as Wan-AI/Wan2.2-T2V-A14B-Diffusers: two transformers (high and low noise), the Wan video
autoencoder in float32, a UMT5 encoder, a tokenizer trained on the spot, a scheduler and model_index.json
with `boundary_ratio` 0.875. Its videos are coloured noise: enough to prove that frames are finite, vary in
space and time, and depend on the seed. The same bytes come out every time.

Runs in an engine environment: `python -m framekeeper.checkpoint.tiny DIRECTORY`. Torch is imported inside
functions only.
"""

# ruff: noqa: PLC0415  A refusal must come without importing torch, which the gateway has not.

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

VERSION = 2
"""Raised with every change of the bytes; written to MARKER."""

MARKER = "framekeeper-tiny.json"
"""Tells a tiny checkpoint of ours from somebody's model."""

TEXT_WIDTH = 32
"""Width of a text embedding."""

HEADS, HEAD_WIDTH = 2, 24
"""Attention heads; 24 splits into the three rotary axes as Wan's 128 does and suits SDPA."""

SENTENCES = (
    "a cat walks on the grass",
    "a dog runs on the beach at sunset",
    "two robots box under a spotlight, cinematic, 4k",
    "waves roll over black rocks while clouds race, time lapse",
    "the quick brown fox jumps over the lazy dog",
    "blurry, low quality, static, watermark, subtitles",
)
"""All that the tokenizer ever learns; other words become pieces or <unk>."""


class NotOurs(Exception):
    """The directory holds something that is not a tiny checkpoint; it is left alone."""


def make_tiny(directory: Path) -> None:
    """Write the checkpoint into `directory`, or leave it when this version is already there.

    Written beside the target and renamed, so that a reader never sees half of it. An older tiny checkpoint
    is replaced. Raises NotOurs when `directory` exists, is not empty and has no marker of ours.
    """
    directory = directory.absolute()
    if _version(directory) == VERSION:
        return
    if (
        directory.exists()
        and _version(directory) is None
        and (directory.is_file() or any(directory.iterdir()))
    ):
        raise NotOurs(
            f"{directory} is not empty and not a tiny checkpoint (no {MARKER}); nothing was written"
        )
    directory.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
    try:
        _write(scratch)
        scratch.chmod(0o755)
        if directory.exists():
            shutil.rmtree(directory)
        scratch.rename(directory)
    except OSError:
        # Somebody else may have finished the same between the check and the renaming.
        if _version(directory) != VERSION:
            raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _version(directory: Path) -> int | None:
    """Version of the tiny checkpoint in `directory`; None when there is none."""
    try:
        version = json.loads((directory / MARKER).read_text())["version"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return version if isinstance(version, int) else None


def _write(directory: Path) -> None:
    import numpy as np
    import torch

    if not torch.cuda.is_available():
        # Transformers imports torchvision when it finds it, which a CPU engine can do only after this.
        from framekeeper.engine.cpu_platform.torchvision_schema import predefine

        predefine()
    numbers = np.random.default_rng(0)
    vocabulary = _write_tokenizer(directory / "tokenizer")
    _write_text_encoder(directory / "text_encoder", vocabulary, numbers)
    for name in ("transformer", "transformer_2"):
        _write_transformer(directory / name, numbers)
    _write_vae(directory / "vae", numbers)
    _write_scheduler(directory / "scheduler")
    _write_json(
        directory / "model_index.json",
        {
            "_class_name": "WanPipeline",
            "_diffusers_version": "0.35.0",
            "boundary_ratio": 0.875,
            "expand_timesteps": False,
            "scheduler": ["diffusers", "UniPCMultistepScheduler"],
            "text_encoder": ["transformers", "UMT5EncoderModel"],
            "tokenizer": ["transformers", "T5TokenizerFast"],
            "transformer": ["diffusers", "WanTransformer3DModel"],
            "transformer_2": ["diffusers", "WanTransformer3DModel"],
            "vae": ["diffusers", "AutoencoderKLWan"],
        },
    )
    # The marker comes last and carries nothing that differs between machines.
    _write_json(directory / MARKER, {"version": VERSION})
    # Some writers make files private; another user's engine must be able to read the model.
    for path in directory.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")


def _write_tokenizer(directory: Path) -> int:
    """Word-level vocabulary over SENTENCES plus single letters; returns its size.

    Built, not trained: a trainer may break ties by hash order, and the bytes must not vary.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    words = sorted({word for sentence in SENTENCES for word in sentence.replace(",", " ,").split()})
    letters = [chr(code) for code in range(33, 127)]
    special = ["<pad>", "</s>", "<unk>"]
    pieces = [*special, *(f"▁{word}" for word in words), "▁", *letters]
    # A unigram model splits an unknown word into its letters; a whole word scores better than its letters.
    scores = [0.0 if piece in special else (-2.0 if len(piece) > 2 else -6.0) for piece in pieces]
    tokenizer = Tokenizer(models.Unigram(list(zip(pieces, scores, strict=True)), unk_id=2))
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    directory.mkdir(parents=True)
    _write_json(directory / "tokenizer.json", json.loads(tokenizer.to_str()))
    names = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    _write_json(directory / "special_tokens_map.json", dict(names))
    _write_json(
        directory / "tokenizer_config.json",
        {
            **names,
            "tokenizer_class": "T5TokenizerFast",
            "extra_ids": 0,
            "model_max_length": 512,
            "padding_side": "right",
        },
    )
    return len(pieces)


def _write_text_encoder(directory: Path, vocabulary: int, numbers: Any) -> None:
    import torch
    from transformers import UMT5Config, UMT5EncoderModel

    config = UMT5Config(
        vocab_size=vocabulary,
        d_model=TEXT_WIDTH,
        d_kv=16,
        d_ff=64,
        num_layers=2,
        num_heads=2,
        num_decoder_layers=2,
        feed_forward_proj="gated-gelu",
        is_encoder_decoder=True,
        tie_word_embeddings=False,
        pad_token_id=0,
        eos_token_id=1,
    )
    encoder = UMT5EncoderModel(config)
    _fill(encoder, numbers)
    _save(encoder.to(torch.bfloat16), directory)


def _write_transformer(directory: Path, numbers: Any) -> None:
    import torch
    from diffusers import WanTransformer3DModel

    transformer = WanTransformer3DModel(
        patch_size=(1, 2, 2),
        num_attention_heads=HEADS,
        attention_head_dim=HEAD_WIDTH,
        in_channels=16,
        out_channels=16,
        text_dim=TEXT_WIDTH,
        freq_dim=256,
        ffn_dim=96,
        num_layers=2,
        cross_attn_norm=True,
        qk_norm="rms_norm_across_heads",
        eps=1e-6,
        image_dim=None,
        added_kv_proj_dim=None,
        rope_max_seq_len=1024,
        pos_embed_seq_len=None,
    )
    _fill(transformer, numbers)
    _save(transformer.to(torch.bfloat16), directory)


def _write_vae(directory: Path, numbers: Any) -> None:
    import torch
    from diffusers import AutoencoderKLWan

    vae = AutoencoderKLWan(
        base_dim=8,
        z_dim=16,
        dim_mult=[1, 2, 4, 4],
        num_res_blocks=1,
        attn_scales=[],
        temperal_downsample=[False, True, True],
        dropout=0.0,
    )
    _fill(vae, numbers)
    # Unit-size activations would clip a third of the pixels to black or white.
    with torch.no_grad():
        vae.decoder.conv_out.weight.mul_(0.375)
    _save(vae, directory)


def _write_scheduler(directory: Path) -> None:
    from diffusers import UniPCMultistepScheduler

    scheduler = UniPCMultistepScheduler(
        prediction_type="flow_prediction",
        use_flow_sigmas=True,
        num_train_timesteps=1000,
        flow_shift=3.0,
    )
    _save(scheduler, directory)


def _fill(module: Any, numbers: Any) -> None:
    """Set every parameter from `numbers`, a numpy generator, in order of its name.

    Libraries initialise in an order of their own that changes between versions, and torch's normal numbers
    differ in the last bit between CPUs. Uniform ones made by multiplication alone do not. Scales (norms,
    gammas) are 1, biases 0, the rest has a deviation of 1/sqrt(inputs), which keeps activations at unit size
    from the latents to the frames.
    """
    import torch

    with torch.no_grad():
        for name, parameter in sorted(module.named_parameters()):
            if name.endswith("bias"):
                parameter.zero_()
            elif "norm" in name or name.endswith("gamma"):
                parameter.fill_(1.0)
            else:
                inputs = max(1, parameter[0].numel()) if parameter.dim() > 1 else parameter.numel()
                values = (numbers.random(tuple(parameter.shape)) * 2.0 - 1.0) * (3.0 / inputs) ** 0.5
                parameter.copy_(torch.from_numpy(values))


def _save(component: Any, directory: Path) -> None:
    """Save with the library's own method, then make its JSON files the same on every machine and version."""
    component.save_pretrained(directory)
    for path in directory.glob("*.json"):
        content = json.loads(path.read_text())
        for key in ("_diffusers_version", "transformers_version", "_name_or_path"):
            content.pop(key, None)
        _write_json(path, content)


def main(arguments: list[str]) -> int:
    """`python -m framekeeper.checkpoint.tiny DIRECTORY`: 0 when it is there, 1 when refused, 2 on misuse."""
    if len(arguments) != 1:
        print("usage: python -m framekeeper.checkpoint.tiny DIRECTORY", file=sys.stderr)  # noqa: T201
        return 2
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
    for library in ("TRANSFORMERS_VERBOSITY", "DIFFUSERS_VERBOSITY"):
        os.environ.setdefault(library, "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    try:
        make_tiny(Path(arguments[0]))
    except NotOurs as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
