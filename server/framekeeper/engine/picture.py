"""The picture that a video starts from: read from the media directory, made as large as the video."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from framekeeper.engine.backends.backend import RequestRefused

if TYPE_CHECKING:
    from framekeeper.engine.backends.backend import Picture

FIELD = "input_reference"
"""The field of a request that it came in."""

MOST_PIXELS = 64_000_000
"""More than any gateway stores: a file of more was put there by somebody else."""


def fitted(path: Path, width: int, height: int) -> Picture:
    """The picture of `path`, a PNG, scaled to cover width x height pixels and cut to its middle.

    vllm-omni stretches a picture of other proportions (its `pre_process_func` calls `resize`), and people in
    it become fat or thin. Wan's own program instead takes the video's size from the picture; here the size
    was settled when the job was accepted. Scaled with Lanczos' filter, as both do.
    Raises RequestRefused when there is no readable picture: that is no fault of the engine.
    """
    from PIL import Image, ImageOps  # noqa: PLC0415  only an engine that takes pictures needs it

    try:
        with Image.open(path, formats=("PNG",)) as image:
            if image.width * image.height > MOST_PIXELS:
                size = f"{image.width}x{image.height}"
                raise RequestRefused(
                    f"The picture has {size} pixels; send one of {MOST_PIXELS} at most.", FIELD
                )
            whole = ImageOps.fit(image.convert("RGB"), (width, height), Image.Resampling.LANCZOS)
    except FileNotFoundError:
        raise RequestRefused("The picture is no longer there; send it again.", FIELD) from None
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        # Pillow raises any of these for a damaged file, and its words may hold our path.
        raise RequestRefused(
            f"The stored picture cannot be read ({type(error).__name__}); send it again.", FIELD
        ) from error
    picture: Picture = np.asarray(whole)
    return picture


def drawn(width: int, height: int) -> Picture:
    """A picture for the warm-up: red grows to the right, green downwards, blue along the diagonal."""
    across = np.linspace(0, 255, width)[None, :]
    down = np.linspace(0, 255, height)[:, None]
    colours: list[Any] = [across + 0 * down, down + 0 * across, 255 - (across + down) / 2]
    picture: Picture = np.stack(colours, axis=-1).astype(np.uint8)
    return picture
