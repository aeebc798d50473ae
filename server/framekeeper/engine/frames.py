"""Whether a generation's frames are the video that was asked for."""

from __future__ import annotations

from framekeeper.engine.backends.backend import Generation
from framekeeper.engine.protocol import Generate
from framekeeper.media.inspect import Inspection, inspect


class FramesRejected(Exception):
    """The frames are no picture; the message says why."""


def inspected(generation: Generation, request: Generate) -> Inspection:
    """What they look like. Raises FramesRejected where they are no picture, or not as many as asked for."""
    inspection = inspect(generation.frames, finite=generation.finite)
    if inspection.fault:
        raise FramesRejected(inspection.fault)
    if inspection.frames != request.num_frames:
        raise FramesRejected(f"there are {inspection.frames} frames instead of {request.num_frames}")
    return inspection
