"""Whether a transformer takes as many channels as the pipeline of its checkpoint hands it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from framekeeper.checkpoint import layout, pictures
from framekeeper.doctor.finding import Finding
from framekeeper.doctor.weights.component import Component
from framekeeper.doctor.weights.wan import CLASS

MASK = 4
"""Channels of the mask that tells the picture's frame from the others."""
_SOURCE = (
    "https://github.com/huggingface/diffusers/blob/v0.36.0/src/diffusers/pipelines/wan/pipeline_wan_i2v.py"
)


def channel_findings(directory: Path, experts: Iterable[Component]) -> Iterator[Finding]:
    """Experts of a model for texts in the folder of one for pictures, and the other way round.

    A pipeline for pictures puts the picture's latents and a mask beside the noise, 16 + 16 + 4 channels of
    I2V-A14B; any other hands the transformer what comes out of it.
    """
    taken = pictures.taken(directory)
    for component in experts:
        inputs, outputs = (component.config.get(key) for key in ("in_channels", "out_channels"))
        known = component.config.get("_class_name") == CLASS and taken is not None
        if not known or not isinstance(inputs, int) or not isinstance(outputs, int):
            continue
        wanted = 2 * outputs + MASK if taken == "required" else outputs
        if inputs != wanted:
            kind = "pictures" if taken == "required" else "texts"
            yield Finding(
                check="weights-channels",
                severity="fatal",
                seen=f"{component.folder / 'config.json'} has in_channels {inputs}, and the pipeline of "
                f"{directory / layout.INDEX}, which makes videos from {kind}, hands it {wanted} channels",
                why="every job fails at its first step",
                advice="fetch model_index.json and the transformers of one model",
                evidence=_SOURCE,
            )
