"""Whether a checkpoint makes videos from pictures, told from its index. Standard library only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

from framekeeper.checkpoint.layout import INDEX

Pictures = Literal["none", "optional", "required"]

FROM_PICTURES = frozenset({"WanImageToVideoPipeline", "WanI2VDMD2Pipeline"})
"""Pipelines whose transformer has channels for a picture: nothing can be made without one."""

FROM_TEXT = frozenset({"WanPipeline", "WanDMDPipeline", "WanT2VDMD2Pipeline"})
"""With `expand_timesteps` they put a picture in the place of the first latent frame, where there is one
(https://github.com/huggingface/diffusers/blob/v0.36.0/src/diffusers/pipelines/wan/pipeline_wan_i2v.py)."""


def taken(directory: Path) -> Pictures | None:
    """Whether its videos may or must start from a picture; None where the index does not tell."""
    try:
        index = json.loads((directory / INDEX).read_text(encoding="utf-8"))
        name, expands = index.get("_class_name"), index.get("expand_timesteps")
    except (OSError, ValueError, AttributeError):
        return None
    if name in FROM_PICTURES:
        return "required"
    if name in FROM_TEXT:
        return "optional" if expands else "none"
    return None


def contradiction(directory: Path, image: Pictures) -> str | None:
    """Why a profile's `admits.image` does not fit the checkpoint, or None. One that takes pictures need not
    be given any, and may be kept for them alone.
    """
    found = taken(directory)
    if found is None or found in ("optional", image):
        return None
    what = "makes videos from text only" if found == "none" else "makes videos from pictures only"
    return (
        f"{directory / INDEX} is of a model that {what}, and the profile has admits.image: {image}; "
        f"set admits.image: {found}"
    )
