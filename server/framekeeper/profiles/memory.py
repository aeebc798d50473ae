"""How much device memory a profile needs: weights by residency, activations by tokens, decode by area.

Calibrated on one H200 with vllm-omni 0.24.0 and 0.30.0, 81 frames, FlashAttention 3, full-size A14B weights
and a text encoder cut to two layers. The slopes come from the 480x832 rows; the tests hold it against the
720x1280, fp8 and offload rows, which it was not fitted on (docs/verified.md has them). What no measurement
covers (TI2V-5B, several devices, int8, model offload) is extrapolated and says so.
"""

from __future__ import annotations

from dataclasses import dataclass

from framekeeper.profiles.runtimes import RUNTIMES, version_tuple
from framekeeper.profiles.schema import Profile, parse_bytes, parse_size
from framekeeper.profiles.wan import (
    A14B,
    TEXT_ENCODER_LAYER,
    TEXT_ENCODER_LAYERS,
    TEXT_ENCODER_WORDS,
    Architecture,
    architecture,
)

GIB = 1024**3
# Bytes per token above the weights while denoising: (61.65e9 - 58.17e9) / 32,760 tokens for eager and
# (60.85e9 - 58.17e9) / 32,760 for regional compile, both at 480x832x81 with two resident experts.
_EAGER_PER_TOKEN = 106_000
_COMPILED_PER_TOKEN = 82_000
# Bytes per pixel of one frame while whole frames of 16 bits are decoded, 81 of them, by vllm-omni 0.30's fast
# path: 5.47e9 / (480 * 832). The same at 720x1280, and twice as much in fp32.
_DECODE_PER_PIXEL = 13_700
# Without the fast path, in 0.24: (66.4e9 - 58.17e9) / (480 * 832).
_DECODE_PLAIN = 20_600
# Tiles of diffusers' and vllm-omni's Wan VAE are 256x256.
_TILE_PIXELS = 256 * 256
# What the caching allocator reserved on top of what was in use, as a share of it: 0.35 to 0.7 in steps, 0.40
# to 0.58 while decoding.
_FRAGMENTATION = 0.5
_DECODE_FRAGMENTATION = 0.6
# CUDA context, cuBLAS and NCCL workspaces. Not measured; 1.5 GiB is what is kept free, and a full card is
# where the allocator breaks (https://github.com/pytorch/pytorch/issues/188008).
_HEAD_ROOM = int(1.5 * GIB)
_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
# Blocks of each model that layerwise offload keeps on the device: the one that runs and the next one.
_RESIDENT_BLOCKS = 2
# The worker's own memory on the host, without weights.
_WORKER = 3 * 10**9


@dataclass(frozen=True, kw_only=True)
class Line:
    """One part of the budget: what it is, its bytes, and how the number came about."""

    name: str
    bytes: int
    origin: str


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The parts that are on the device at the peak. `measured` is False where any part is extrapolated."""

    lines: tuple[Line, ...]
    measured: bool

    @property
    def bytes(self) -> int:
        """Sum of all lines."""
        return sum(line.bytes for line in self.lines)


def block_bytes(profile: Profile, model: Architecture) -> int:
    """Bytes of one transformer block in this profile's dtype and quantisation, before any splitting."""
    return model.block * (1 if profile.quantization != "none" else _BYTES[profile.dtype])


def transformer_bytes(profile: Profile, model: Architecture) -> int:
    """Bytes of one expert: quantisation holds for the blocks only."""
    return model.layers * block_bytes(profile, model) + model.outside_blocks * _BYTES[profile.dtype]


def loaded_experts(profile: Profile, model: Architecture) -> int:
    """Experts in memory: a boundary of 0 or 1 loads only one (vllm-omni PR 980)."""
    return min(model.experts, profile.experts)


def _pinned(profile: Profile, size: int) -> int:
    """What a block of `size` bytes takes on the host: torch rounds page-locked ones up to a power of two.

    https://github.com/pytorch/pytorch/blob/v2.11.0/aten/src/ATen/core/CachingHostAllocator.h
    """
    return 1 << (size - 1).bit_length() if profile.offload_pin_memory else size


def _since_0_30(profile: Profile) -> bool:
    """Whether vllm-omni is 0.30 or newer: its layerwise offload takes the text encoder's blocks as well, and
    its decoder has a fast path."""
    runtime = RUNTIMES.get(profile.runtime)
    return runtime is not None and version_tuple(runtime.vllm_omni) >= (0, 30)


def offloaded_bytes(profile: Profile, *, text_encoder_layers: int = TEXT_ENCODER_LAYERS) -> int:
    """Bytes that weights take in host memory; 0 without offload or for an unknown model."""
    model = architecture(profile)
    if model is None or profile.offload == "none":
        return 0
    experts = loaded_experts(profile, model)
    if profile.offload == "layerwise":
        blocks = experts * model.layers * _pinned(profile, block_bytes(profile, model))
        if _since_0_30(profile):
            layer = TEXT_ENCODER_LAYER * _BYTES[profile.dtype]
            blocks += text_encoder_layers * _pinned(profile, layer)
        return blocks
    return experts * transformer_bytes(profile, model) + model.text_encoder * _BYTES[profile.dtype]


def _weight_lines(profile: Profile, model: Architecture, text_encoder: int) -> list[Line]:
    size = _BYTES[profile.dtype]
    experts = loaded_experts(profile, model)
    shards = profile.parallel.tensor * profile.parallel.hsdp * profile.parallel.pipeline
    block = block_bytes(profile, model)
    outside = model.outside_blocks * size
    vae = Line(name="VAE weights", bytes=model.vae * size, origin=f"{model.vae:,} parameters")
    encoder = Line(name="text encoder", bytes=text_encoder * size, origin=f"{text_encoder:,} parameters")
    if profile.offload == "layerwise":
        blocks = experts * _RESIDENT_BLOCKS * block // profile.parallel.tensor
        if _since_0_30(profile):
            parameters = min(text_encoder, TEXT_ENCODER_WORDS + _RESIDENT_BLOCKS * TEXT_ENCODER_LAYER)
            encoder = Line(
                name="text encoder", bytes=parameters * size, origin="its words and the blocks that run"
            )
        return [
            Line(
                name="blocks on the device",
                bytes=blocks,
                origin=f"{_RESIDENT_BLOCKS} of {model.layers} of each expert",
            ),
            Line(
                name="outside the blocks",
                bytes=experts * outside,
                origin=f"{experts} expert(s), not offloaded",
            ),
            encoder,
            vae,
        ]
    whole = transformer_bytes(profile, model) // shards
    if profile.offload == "model":
        largest = max(whole, text_encoder * size)
        return [Line(name="largest model", bytes=largest, origin="one model at a time is on the device"), vae]
    origin = f"{experts} expert(s) of {model.expert:,} parameters in {shards} shard(s)"
    return [Line(name="transformers", bytes=experts * whole, origin=origin), encoder, vae]


def _working_lines(profile: Profile, model: Architecture) -> list[Line]:
    width, height = parse_size(profile.admits.size)
    per_token = _EAGER_PER_TOKEN if profile.compile == "off" else _COMPILED_PER_TOKEN
    # Activations are as wide as the model and its feed-forward; only A14B's width was measured.
    scale = (model.width + model.feed_forward) / (A14B.width + A14B.feed_forward)
    split = profile.parallel.ulysses * profile.parallel.ring
    tokens = model.tokens(width, height, profile.admits.num_frames) // split
    activations = int(tokens * per_token * scale)
    pixels = profile.admits.area // profile.parallel.vae
    if profile.vae.tiling:
        pixels = min(pixels, _TILE_PIXELS)
    # As they leave the device: rounded from fp32.
    frames = profile.admits.area * profile.admits.num_frames * 3 * 4 if profile.vae.tiling else 0
    fast = profile.vae.fast_path != "off" and not profile.vae.tiling and _since_0_30(profile)
    per_pixel = (_DECODE_PER_PIXEL if fast else _DECODE_PLAIN) * _BYTES[profile.dtype] // 2
    decode = pixels * per_pixel + frames
    if decode > activations:
        tile = "tile" if profile.vae.tiling else "frame"
        return [
            Line(
                name="VAE decode",
                bytes=decode,
                origin=f"{pixels:,} pixels a {tile}, above {activations:,} of steps",
            ),
            Line(
                name="allocator's slack",
                bytes=int(decode * _DECODE_FRAGMENTATION),
                origin=f"{_DECODE_FRAGMENTATION} of the decoding",
            ),
        ]
    return [
        Line(
            name="activations",
            bytes=activations,
            origin=f"{tokens:,} tokens of {int(per_token * scale):,} bytes",
        ),
        Line(
            name="allocator's slack",
            bytes=int(activations * _FRAGMENTATION),
            origin=f"{_FRAGMENTATION} of the activations",
        ),
    ]


def budget(profile: Profile, *, text_encoder: int | None = None) -> Budget | None:
    """Peak memory of one device of the profile, by line; None for a model that is not known.

    `text_encoder` overrides its number of parameters (the measurements had a smaller one).
    """
    model = architecture(profile)
    if model is None or profile.devices.kind == "cpu":
        return None
    lines = _weight_lines(profile, model, text_encoder or model.text_encoder)
    lines += _working_lines(profile, model)
    lines.append(Line(name="head-room", bytes=_HEAD_ROOM, origin="CUDA context and workspaces, kept free"))
    measured = (
        model is A14B
        and profile.devices.count == 1
        and profile.offload != "model"
        and profile.quantization != "int8"
        and profile.dtype == "bfloat16"
    )
    return Budget(lines=tuple(lines), measured=measured)


def denoising_peak(profile: Profile, *, text_encoder: int) -> int:
    """Bytes that torch has allocated at the peak of a denoising step, as the measurements give them."""
    model = architecture(profile)
    assert model is not None
    weights = sum(line.bytes for line in _weight_lines(profile, model, text_encoder))
    width, height = parse_size(profile.admits.size)
    per_token = _EAGER_PER_TOKEN if profile.compile == "off" else _COMPILED_PER_TOKEN
    return weights + model.tokens(width, height, profile.admits.num_frames) * per_token


def reserved_peak(profile: Profile, *, text_encoder: int) -> int:
    """Bytes that torch has reserved at the peak of a video, decoding included, without the head-room."""
    model = architecture(profile)
    assert model is not None
    return sum(
        line.bytes for line in (*_weight_lines(profile, model, text_encoder), *_working_lines(profile, model))
    )


def host_bytes(profile: Profile) -> int:
    """Host memory the worker needs at least: itself, and what is offloaded or one expert while loading."""
    model = architecture(profile)
    if model is None:
        return 0
    return _WORKER + max(offloaded_bytes(profile), transformer_bytes(profile, model))


def largest_frames(profile: Profile, memory: int) -> int | None:
    """Most frames, 4k+1, of the admitted size that fit into `memory` bytes; None when not even one does."""
    for frames in range(profile.admits.num_frames, 0, -4):
        smaller = profile.model_copy(
            update={"admits": profile.admits.model_copy(update={"num_frames": frames})}
        )
        found = budget(smaller)
        if found is not None and found.bytes <= memory:
            return frames
    return None


def card_memory(profile: Profile) -> int | None:
    """Bytes of the card the profile was made for, None where it does not say."""
    return parse_bytes(profile.host.gpu_memory) if profile.host.gpu_memory else None
