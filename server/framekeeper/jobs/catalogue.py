"""What a model's engines make, as one answer for those who choose a size and a length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

from framekeeper.jobs.admission import MAX_FPS, Limits
from framekeeper.jobs.engines import Engine, EngineState
from framekeeper.jobs.reference import Mode, mode_of
from framekeeper.jobs.shape import parse_size

#: Width to height of suggested sizes: those of screens, photographs, squares, and each upright.
ASPECTS = ((16, 9), (4, 3), (1, 1), (3, 4), (9, 16))


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """The largest jobs of a model, and its defaults. Sizes are (width, height), the default size first."""

    model: str
    created: int
    size: str
    num_frames: int
    steps: int
    fps: int
    defaults: Mapping[str, Any]
    sizes: tuple[tuple[int, int], ...]
    #: Whether a video may or must start from a picture.
    image: Mode = "none"

    @property
    def default_shape(self) -> tuple[int, int, int]:
        """Width, height and frames of a job that names none."""
        return (*parse_size(self.defaults["size"]), int(self.defaults["num_frames"]))


def offers(engines: Sequence[Engine]) -> list[Offer]:
    """One for each model, by name. Engines that were stopped count only where no other serves the model."""
    return [_offer(model, engines) for model in sorted({engine.model for engine in engines})]


def _offer(model: str, engines: Sequence[Engine]) -> Offer:
    own = [engine for engine in engines if engine.model == model]
    running = [engine for engine in own if engine.state is not EngineState.STOPPED] or own
    # The engine whose defaults admission fills in.
    defaults = min(running, key=lambda engine: engine.id).defaults
    widest = max((Limits.of(engine) for engine in running), key=lambda limits: limits.area)
    return Offer(
        model=model,
        created=min(int(engine.started_at.timestamp()) for engine in own),
        size=widest.size,
        num_frames=widest.num_frames,
        steps=widest.steps,
        fps=MAX_FPS,
        defaults=defaults,
        sizes=_sizes(widest, defaults["size"]),
        image=mode_of(running),
    )


def _sizes(widest: Limits, default: str) -> tuple[tuple[int, int], ...]:
    """The default, the largest, and the largest of each aspect that fits, without repetitions."""
    found = [parse_size(default), parse_size(widest.size)]
    for across, down in ASPECTS:
        scale = sqrt(widest.area / (across * down))
        width, height = (_down(side * scale, widest.multiple) for side in (across, down))
        if width * height <= widest.area:
            found.append((width, height))
    return tuple(dict.fromkeys(found))


def _down(side: float, multiple: int) -> int:
    return max(multiple, int(side + 1e-6) // multiple * multiple)
