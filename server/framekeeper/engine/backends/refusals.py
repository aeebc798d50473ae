"""What a Wan2.2 pipeline cannot make, told by the request's field before anything runs.

The libraries round sizes and frame counts down in silence; a video of another shape than the one that was
accepted is not what its owner asked for.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from framekeeper.engine.backends.backend import RequestRefused
from framekeeper.engine.picture import FIELD

if TYPE_CHECKING:
    from framekeeper.engine.protocol import Generate


def refuse_wrong(request: Generate, *, multiple: int, group: int) -> None:
    """Raise RequestRefused for the first wrong field.

    `multiple` is what both sides must be a multiple of (autoencoder's factor times patch), `group` the frames
    that one latent frame holds.
    """
    faults = {
        "prompt": not request.prompt.strip() and "the prompt is empty",
        "width": request.width % multiple and f"width {request.width} is not a multiple of {multiple}",
        "height": request.height % multiple and f"height {request.height} is not a multiple of {multiple}",
        "num_frames": (request.num_frames - 1) % group
        and f"num_frames {request.num_frames} is not a multiple of {group} plus 1",
        "num_inference_steps": request.num_inference_steps < 1 and "num_inference_steps must be at least 1",
    }
    for field, message in faults.items():
        if message:
            raise RequestRefused(str(message), field)


def refuse_picture(pictures: str, *, given: bool) -> None:
    """Raise RequestRefused for a picture that the model has no use for, and for one that it lacks.

    `pictures` is none, optional or required, as in a profile's `admits.image`.
    """
    if pictures == "none" and given:
        raise RequestRefused("this model makes videos from text only; leave the picture out", FIELD)
    if pictures == "required" and not given:
        raise RequestRefused("this model makes videos from a picture only; send one", FIELD)


def refuse_repeated(timesteps: Iterable[float]) -> None:
    """Raise RequestRefused when the schedule holds a timestep twice.

    They are whole numbers out of 1000: several hundred steps repeat some, and the solver then divides by zero
    or fails an assertion half-way through the video.
    """
    steps = list(timesteps)
    distinct = len(set(steps))
    if distinct < len(steps):
        raise RequestRefused(
            f"num_inference_steps {len(steps)} leaves only {distinct} distinct timesteps",
            "num_inference_steps",
        )
