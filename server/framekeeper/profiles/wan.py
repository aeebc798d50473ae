"""Sizes of the Wan2.2 models that rules and the memory model need, from their published configurations."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from framekeeper.profiles.schema import Pictures, Profile

# UMT5-XXL's encoder: 24 layers of width 4096, gated feed-forward of 10240, 64 heads of 64, 256,384 words;
# https://huggingface.co/Wan-AI/Wan2.2-T2V-A14B-Diffusers
TEXT_ENCODER_WORDS = 256_384 * 4096
TEXT_ENCODER_LAYER = 4 * 4096 * 4096 + 3 * 4096 * 10_240
TEXT_ENCODER_LAYERS = 24
_UMT5_XXL = TEXT_ENCODER_WORDS + TEXT_ENCODER_LAYERS * TEXT_ENCODER_LAYER


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """One model's shape. `pixels` is the side of the square of pixels that becomes one token.

    `text_encoder` and `vae` are numbers of parameters, `frames` is how many frames one latent frame holds,
    `pictures` whether its videos may or must start from one.
    """

    name: str
    experts: int
    layers: int
    width: int
    feed_forward: int
    heads: int
    pixels: int
    text_encoder: int
    vae: int
    frames: int = 4
    pictures: Pictures = "none"

    @property
    def block(self) -> int:
        """Parameters of one block: two attentions of four matrices each, and a feed-forward of two."""
        return 8 * self.width**2 + 2 * self.width * self.feed_forward

    @property
    def outside_blocks(self) -> int:
        """Parameters of one expert outside its blocks: text and time embeddings and their projection."""
        return 4096 * self.width + 2 * self.width**2 + 256 * self.width + 6 * self.width**2

    @property
    def expert(self) -> int:
        """Parameters of one expert."""
        return self.layers * self.block + self.outside_blocks

    def tokens(self, width: int, height: int, num_frames: int) -> int:
        """Length of the token sequence of one video."""
        latent_frames = (num_frames - 1) // self.frames + 1
        return latent_frames * (width // self.pixels) * (height // self.pixels)


A14B = Architecture(
    name="Wan2.2-T2V-A14B",
    experts=2,
    layers=40,
    width=5120,
    feed_forward=13_824,
    heads=40,
    pixels=16,
    text_encoder=_UMT5_XXL,
    vae=127_000_000,
)
# The same but for 20 more channels of its patch embedding, 400,000 weights:
# https://huggingface.co/Wan-AI/Wan2.2-I2V-A14B-Diffusers
I2V_A14B = dataclasses.replace(A14B, name="Wan2.2-I2V-A14B", pictures="required")
TI2V_5B = Architecture(
    name="Wan2.2-TI2V-5B",
    experts=1,
    layers=30,
    width=3072,
    feed_forward=14_336,
    heads=24,
    pixels=32,
    text_encoder=_UMT5_XXL,
    vae=705_000_000,
    pictures="optional",
)


def architecture(profile: Profile) -> Architecture | None:
    """The architecture a profile's model has by its name, None for one that is not known."""
    name = _name(profile)
    if "a14b" in name:
        return I2V_A14B if "i2v-a14b" in name else A14B
    return TI2V_5B if "ti2v-5b" in name else None


def pictures(profile: Profile) -> Pictures | None:
    """Whether a profile's model by its name takes pictures, None where the name does not tell."""
    model = architecture(profile)
    if model is not None:
        return model.pictures
    return next((taken for word, taken in _WORDS.items() if word in _name(profile)), None)


def square(profile: Profile) -> int:
    """Side of the square of pixels that becomes one token: 32 with the autoencoder of Wan2.2, else 16."""
    model = architecture(profile)
    if model is not None:
        return model.pixels
    return TI2V_5B.pixels if "ti2v" in _name(profile) else A14B.pixels


# In this order: one holds another.
_WORDS: dict[str, Pictures] = {"ti2v": "optional", "i2v": "required", "t2v": "none"}


def _name(profile: Profile) -> str:
    return f"{profile.serves} {profile.model}".lower()
