"""A lower limit on what an engine admits, after a video of some size did not fit into its card."""

from __future__ import annotations

from dataclasses import dataclass

from framekeeper.jobs.shape import FRAMES_PER_LATENT, PIXELS_PER_TOKEN, tokens

#: The new limit has at most this share of the tokens that did not fit.
SHARE = 0.75
#: Shorter or smaller videos than these are not worth an engine: then something else has to change.
LEAST_FRAMES = 17
LEAST_PIXELS = 160 * 160


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Width and height in pixels, and frames."""

    width: int
    height: int
    num_frames: int

    @property
    def tokens(self) -> int:
        """What attention sees of it; memory grows with it."""
        return tokens(self.width, self.height, self.num_frames)

    def __str__(self) -> str:
        return f"{self.width}x{self.height}, {self.num_frames} frames"


@dataclass(frozen=True, kw_only=True)
class Limit:
    """Until `until` (seconds since the epoch) at most `shape` is admitted, because of `reason`."""

    shape: Shape
    until: float
    reason: str


def smaller(shape: Shape) -> Shape | None:
    """The next shape to admit when this one does not fit: fewer frames first, then less area; None if none.

    Frames stay 4k+1 and sides multiples of 16 pixels, as the model wants them.
    """
    allowed = shape.tokens * SHARE
    frames = shape.num_frames
    while frames > LEAST_FRAMES:
        frames = (frames - 2) // FRAMES_PER_LATENT * FRAMES_PER_LATENT + 1
        if frames < LEAST_FRAMES:
            break
        shorter = Shape(width=shape.width, height=shape.height, num_frames=frames)
        if shorter.tokens <= allowed:
            return shorter
    scale = SHARE**0.5
    width = int(shape.width * scale) // PIXELS_PER_TOKEN * PIXELS_PER_TOKEN
    height = int(shape.height * scale) // PIXELS_PER_TOKEN * PIXELS_PER_TOKEN
    if width * height < LEAST_PIXELS:
        return None
    return Shape(width=width, height=height, num_frames=shape.num_frames)
