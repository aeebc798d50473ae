"""Shape classes: a queue holds jobs of similar size, and an engine listens to those it admits."""

from __future__ import annotations

#: Latent grid of AutoencoderKLWan and the transformer's patch: 8x8 pixels a latent, 2x2 latents a token, 4
#: frames a latent frame (https://huggingface.co/docs/diffusers/api/models/autoencoder_kl_wan).
PIXELS_PER_TOKEN = 16
FRAMES_PER_LATENT = 4


def parse_size(text: str) -> tuple[int, int]:
    """Width and height in pixels of a size that was checked before, such as "832x480"."""
    width, _, height = text.partition("x")
    return int(width), int(height)


def tokens(width: int, height: int, num_frames: int) -> int:
    """Tokens that attention sees for this shape; cost grows with it, and so does memory."""
    latent_frames = (num_frames - 1) // FRAMES_PER_LATENT + 1
    return -(-width // PIXELS_PER_TOKEN) * -(-height // PIXELS_PER_TOKEN) * latent_frames


def shape_class(width: int, height: int, num_frames: int) -> int:
    """The least n with `tokens <= 2**n`."""
    return max(0, (tokens(width, height, num_frames) - 1).bit_length())


def queue_name(model: str, width: int, height: int, num_frames: int) -> str:
    """The queue of a job of this shape."""
    return f"{model}/{shape_class(width, height, num_frames)}"


def admitted_queues(model: str, width: int, height: int, num_frames: int) -> list[str]:
    """The queues an engine listens to whose largest shape is this one.

    The largest class can hold jobs over the limit when engines of one model have different limits; the
    supervisor puts such a job back for another engine.
    """
    return [f"{model}/{n}" for n in range(shape_class(width, height, num_frames) + 1)]
