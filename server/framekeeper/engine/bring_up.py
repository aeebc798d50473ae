"""From a started process to a proven engine: load, the backend's dummy run, a real job."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from framekeeper.engine import protocol
from framekeeper.engine.exit import Exit
from framekeeper.engine.link import Link
from framekeeper.engine.patience import Patience
from framekeeper.profiles.launch import Launch

#: The prompt of the warm-up; any text does, but an empty one would not exercise the text encoder.
PROMPT = "a cat walks on the grass, realistic"


class StartFailed(Exception):
    """The process did not become an engine; the message says why. `hung` says that it said nothing at all."""

    def __init__(
        self, message: str, phase: str, *, hung: bool = False, failure: protocol.Failed | None = None
    ) -> None:
        super().__init__(message)
        self.phase = phase
        self.hung = hung
        self.failure = failure


async def bring_up(
    link: Link, launch: Launch, directory: Path, on_phase: Callable[[str], None]
) -> dict[str, Any]:
    """Load and warm up; returns the facts of both. Raises StartFailed; the caller kills."""
    profile = launch.profile
    link.send(protocol.Load(backend=launch.backend, model=launch.model, options=launch.options))
    loaded = await _answer(
        link, protocol.Loaded, profile.deadlines.load_seconds, "deadlines.load_seconds", on_phase
    )
    link.send(
        protocol.WarmUp(
            request=warm_up_request(launch, directory),
            experts=profile.experts,
            # Also where a picture may be left out: a video from one takes more, the encoder of the pictures.
            picture=profile.admits.image != "none",
        )
    )
    ready = await _answer(
        link, protocol.Ready, profile.warm_up.deadline_seconds, "warm_up.deadline_seconds", on_phase
    )
    return {"load": loaded.facts, "warm_up": ready.facts}


def warm_up_request(launch: Launch, directory: Path) -> protocol.Generate:
    """A job at the largest admitted shape, with guidance on: all that a job needs has run."""
    profile = launch.profile
    width, height = profile.warm_up_size
    defaults = profile.defaults
    return protocol.Generate(
        job="warm-up",
        attempt=1,
        prompt=PROMPT,
        negative_prompt=defaults.negative_prompt,
        width=width,
        height=height,
        num_frames=profile.warm_up_frames,
        fps=defaults.fps,
        num_inference_steps=profile.warm_up.num_inference_steps,
        guidance_scale=max(defaults.guidance_scale, 2.0),
        guidance_scale_2=max(defaults.guidance_scale_2 or defaults.guidance_scale, 2.0),
        boundary_ratio=defaults.boundary_ratio,
        flow_shift=defaults.flow_shift,
        seed=0,
        directory=str(directory),
    )


async def _answer(
    link: Link, kind: type[Any], seconds: float, key: str, on_phase: Callable[[str], None]
) -> Any:
    phase = "importing" if kind is protocol.Loaded else "warming"
    on_phase(phase)
    patience, ends = Patience(), time.monotonic() + seconds
    while True:
        try:
            left = ends + patience.paused_seconds - time.monotonic()
            message = await patience.message(link.start, left)
        except TimeoutError:
            text = f"{phase.replace('_', ' ')} was not done within {key} ({seconds:g} s)"
            raise StartFailed(text, phase, hung=True) from None
        match message:
            case protocol.Phase():
                phase = message.name
                on_phase(phase)
            case protocol.Failed():
                text = f"while {phase.replace('_', ' ')}, {message.message}"
                raise StartFailed(text, phase, failure=message)
            case Exit():
                raise StartFailed(f"while {phase.replace('_', ' ')}, {message}", phase)
            case _ if isinstance(message, kind):
                return message
