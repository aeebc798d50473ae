"""A Wan2.2-shaped checkpoint of a few megabytes with random weights, for machines without a GPU.

Same layout as Wan-AI/Wan2.2-T2V-A14B-Diffusers: two transformers (high and low noise), the Wan video
autoencoder in float32, a UMT5 encoder, a tokenizer trained on the spot, a scheduler and model_index.json
with `boundary_ratio` 0.875. Its videos are coloured noise: enough to prove that frames are finite, vary in
space and time, and depend on the seed. The same bytes come out every time.

Two other kinds start from pictures, and their videos depend on them: `ti2v` in the form of
Wan-AI/Wan2.2-TI2V-5B-Diffusers (one transformer, the Wan2.2 autoencoder of 48 channels and 16x16 pixels, a
picture instead of the first latent frame), `i2v` in that of Wan-AI/Wan2.2-I2V-A14B-Diffusers (two
transformers with 20 more channels for picture and mask).

Runs in an engine environment: `python -m framekeeper.checkpoint.tiny DIRECTORY [KIND]`. Torch is imported
inside functions only.
"""

# ruff: noqa: PLC0415  A refusal must come without importing torch, which the gateway has not.

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from dataclasses import dataclass
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

CHANNELS = 16
"""Of a latent of the autoencoder that Wan2.1 brought, 8x8 pixels; t2v and i2v use it."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What distinguishes one of the three. `inputs` and `outputs` are a transformer's channels."""

    pipeline: str
    experts: int
    inputs: int
    outputs: int
    boundary_ratio: float | None
    expand_timesteps: bool = False
    #: The autoencoder of Wan2.2: it works on squares of 2x2 pixels, with a residual path.
    residual_vae: bool = False
    #: Further entries of model_index.json: parts that are left out on purpose.
    absent: tuple[str, ...] = ()


KINDS = {
    "t2v": Kind(pipeline="WanPipeline", experts=2, inputs=CHANNELS, outputs=CHANNELS, boundary_ratio=0.875),
    "ti2v": Kind(
        pipeline="WanPipeline",
        experts=1,
        inputs=48,
        outputs=48,
        boundary_ratio=None,
        expand_timesteps=True,
        residual_vae=True,
        absent=("transformer_2",),
    ),
    "i2v": Kind(
        pipeline="WanImageToVideoPipeline",
        experts=2,
        inputs=2 * CHANNELS + 4,
        outputs=CHANNELS,
        boundary_ratio=0.9,
        absent=("image_encoder", "image_processor"),
    ),
}

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


def make_tiny(directory: Path, kind: str = "t2v") -> None:
    """Write the checkpoint into `directory`, or leave it when this version is already there.

    Written beside the target and renamed, so that a reader never sees half of it. An older tiny checkpoint,
    and one of another kind, is replaced. Raises NotOurs when `directory` exists, is not empty and has no
    marker of ours; KeyError when `kind` is not one of KINDS.
    """
    form = KINDS[kind]
    directory = directory.absolute()
    if is_current(directory, kind):
        return
    if directory.exists() and not is_ours(directory) and (directory.is_file() or any(directory.iterdir())):
        raise NotOurs(
            f"{directory} is not empty and not a tiny checkpoint (no {MARKER}); nothing was written"
        )
    directory.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
    try:
        _write(scratch, form)
        # The marker comes last and carries nothing that differs between machines.
        _write_json(scratch / MARKER, _mark(kind))
        _make_readable(scratch)
        scratch.chmod(0o755)
        if directory.exists():
            shutil.rmtree(directory)
        scratch.rename(directory)
    except OSError:
        # Somebody else may have finished the same between the check and the renaming.
        if not is_current(directory, kind):
            raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def is_current(directory: Path, kind: str = "t2v") -> bool:
    """Whether `directory` holds a tiny checkpoint of this kind and this version."""
    return _marker(directory) == _mark(kind)


def is_ours(directory: Path) -> bool:
    """Whether `directory` holds a tiny checkpoint of any kind and version."""
    return _marker(directory) is not None


def missing(directory: Path) -> list[str]:
    """How a tiny checkpoint that a profile names is made, where there is none; empty for any other model."""
    for kind in KINDS:
        if directory.name == f"wan2.2-{kind}-tiny" and not directory.exists():
            return [
                f"{directory} is not there: `framekeeper model make-tiny {directory} --kind {kind}` makes it"
            ]
    return []


def _mark(kind: str) -> dict[str, Any]:
    """What MARKER holds; the first kind had no name."""
    return {"version": VERSION} | ({} if kind == "t2v" else {"kind": kind})


def _marker(directory: Path) -> dict[str, Any] | None:
    """The mark of a tiny checkpoint in `directory`; None when there is none."""
    try:
        marker = json.loads((directory / MARKER).read_text())
        return marker if isinstance(marker["version"], int) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write(directory: Path, kind: Kind) -> None:
    import numpy as np
    import torch

    if not torch.cuda.is_available():
        # Transformers imports torchvision when it finds it, which a CPU engine can do only after this.
        from framekeeper.engine.cpu_platform.torchvision_schema import predefine

        predefine()
    numbers = np.random.default_rng(0)
    vocabulary = _write_tokenizer(directory / "tokenizer")
    _write_text_encoder(directory / "text_encoder", vocabulary, numbers)
    transformers = ("transformer", "transformer_2")[: kind.experts]
    for name in transformers:
        _write_transformer(directory / name, kind, numbers)
    _write_vae(directory / "vae", kind, numbers)
    _write_scheduler(directory / "scheduler")
    _write_json(
        directory / "model_index.json",
        {
            "_class_name": kind.pipeline,
            "_diffusers_version": "0.35.0",
            "boundary_ratio": kind.boundary_ratio,
            "expand_timesteps": kind.expand_timesteps,
            "scheduler": ["diffusers", "UniPCMultistepScheduler"],
            "text_encoder": ["transformers", "UMT5EncoderModel"],
            "tokenizer": ["transformers", "T5TokenizerFast"],
            "vae": ["diffusers", "AutoencoderKLWan"],
            **{name: ["diffusers", "WanTransformer3DModel"] for name in transformers},
            **{name: [None, None] for name in kind.absent},
        },
    )


def _make_readable(directory: Path) -> None:
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


def _write_transformer(directory: Path, kind: Kind, numbers: Any) -> None:
    import torch
    from diffusers import WanTransformer3DModel

    transformer = WanTransformer3DModel(
        patch_size=(1, 2, 2),
        num_attention_heads=HEADS,
        attention_head_dim=HEAD_WIDTH,
        in_channels=kind.inputs,
        out_channels=kind.outputs,
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
    # A picture's latents are small beside the noise; untrained weights would hardly see them.
    with torch.no_grad():
        transformer.patch_embedding.weight[:, kind.outputs :].mul_(8.0)
    _save(transformer.to(torch.bfloat16), directory)


def _write_vae(directory: Path, kind: Kind, numbers: Any) -> None:
    import torch
    from diffusers import AutoencoderKLWan

    residual: dict[str, Any] = {
        "is_residual": True,
        "in_channels": 12,
        "out_channels": 12,
        "patch_size": 2,
        "scale_factor_spatial": 16,
        "scale_factor_temporal": 4,
        # The library's default is of the other autoencoder's 16 channels.
        "latents_mean": [0.0] * kind.outputs,
        "latents_std": [1.0] * kind.outputs,
    }
    vae = AutoencoderKLWan(
        base_dim=8,
        z_dim=kind.outputs,
        dim_mult=[1, 2, 4, 4],
        num_res_blocks=1,
        attn_scales=[],
        temperal_downsample=[False, True, True],
        dropout=0.0,
        **(residual if kind.residual_vae else {}),
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
    """`… DIRECTORY [KIND]`: 0 when it is there, 1 when refused, 2 on misuse."""
    if len(arguments) not in {1, 2} or (kind := (*arguments, "t2v")[1]) not in KINDS:
        usage = f"usage: python -m framekeeper.checkpoint.tiny DIRECTORY [{'|'.join(KINDS)}]"
        print(usage, file=sys.stderr)  # noqa: T201
        return 2
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
    for library in ("TRANSFORMERS_VERBOSITY", "DIFFUSERS_VERBOSITY"):
        os.environ.setdefault(library, "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    try:
        make_tiny(Path(arguments[0]), kind)
    except NotOurs as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
