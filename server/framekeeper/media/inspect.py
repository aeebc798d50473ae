"""Looking at frames: a video that is not finite, black or constant is not a video.

An FP8 model has been seen to give 100 % NaN frames without an error, faster than BF16
(https://github.com/vllm-project/vllm-omni/issues/5263); upstream's dummy run does not look.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

#: Least standard deviation over all pixels; a constant picture after 8-bit rounding stays under one step.
LEAST_CONTRAST = 1.5 / 255
#: Brightness under which every pixel of the video counts as black; video black (16 of 255) is above it.
BLACK = 6 / 255


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """What frames look like. Brightness values lie in 0..1; `motion` is the mean change between frames."""

    frames: int
    finite: bool
    mean: float
    contrast: float
    brightest: float
    motion: float

    @property
    def fault(self) -> str | None:
        """What is wrong with the frames, or None."""
        if self.frames == 0:
            return "there are no frames"
        if not self.finite:
            return "the frames hold values that are not finite (NaN or infinite)"
        if self.brightest < BLACK:
            return f"all frames are black (brightest value {self.brightest:.4f} of 1)"
        if self.contrast < LEAST_CONTRAST:
            return f"the frames are constant (standard deviation {self.contrast:.5f} of 1)"
        return None

    def facts(self) -> dict[str, Any]:
        """As plain values, for messages and records."""
        return asdict(self)


def inspect(frames: np.ndarray[Any, np.dtype[Any]], *, finite: bool = True) -> Inspection:
    """Look at frames of shape (frames, height, width, 3), as float 0..1 or uint8 0..255.

    `finite` is what is known of the values that they were made from.
    Works frame by frame, so that it needs little memory beside the video.
    """
    scale = 1 / 255 if frames.dtype == np.uint8 else 1.0
    total = squares = motion = 0.0
    brightest = -np.inf
    before: np.ndarray[Any, Any] | None = None
    for frame in frames:
        values = frame.astype(np.float32) * np.float32(scale)
        finite = finite and bool(np.isfinite(values).all())
        total += float(values.sum(dtype=np.float64))
        squares += float(np.square(values, dtype=np.float64).sum())
        brightest = max(brightest, float(values.max()))
        if before is not None:
            motion += float(np.abs(values - before).mean())
        before = values
    count = max(1, frames.size)
    mean = total / count
    return Inspection(
        frames=len(frames),
        finite=finite,
        mean=mean if finite else 0.0,
        contrast=max(0.0, squares / count - mean * mean) ** 0.5 if finite else 0.0,
        brightest=brightest if finite else 0.0,
        motion=motion / max(1, len(frames) - 1) if finite else 0.0,
    )
