"""What a worker asks of a backend."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np

    from framekeeper.engine.protocol import Generate, PhaseName

    #: Height, width and three colours, 0..255; of the request's height and width.
    Picture = np.ndarray[Any, np.dtype[np.uint8]]


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """Progress from inside the denoising loop; see `protocol.Step` for units."""

    step: int
    steps: int
    seconds: float
    memory_bytes: int
    expert: int | None


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Where a backend reports to; both may be called from any thread."""

    phase: Callable[[PhaseName], None]
    step: Callable[[StepReport], None]


@dataclass(frozen=True, kw_only=True)
class Generation:
    """A finished generation.

    `frames` has the shape (frames, height, width, 3). As float32 they are nominally in 0..1; NaN and values
    outside are passed on as they came, for the inspection to see. As uint8 they were made on the device, and
    `finite` says whether the values before were. `seconds` holds what was measured inside, by phase.
    `peak_memory_bytes` is the device allocator's peak (resident set on a CPU).
    """

    frames: np.ndarray[Any, np.dtype[Any]]
    seconds: dict[str, float]
    expert_steps: dict[int, int]
    peak_memory_bytes: int
    finite: bool = True


class GenerationCancelled(Exception):
    """The generation stopped before `step`, because `cancel` was called; the backend is usable."""

    def __init__(self, step: int) -> None:
        super().__init__(f"cancelled before denoising step {step}")
        self.step = step


class RequestRefused(Exception):
    """The request is one that this model cannot do; the backend is usable. `param` names the field."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class Backend(Protocol):
    """One model on one device group. `load`, `generate` and `close` are called from one thread."""

    def load(self, model: str, options: dict[str, Any], progress: Progress) -> dict[str, Any]:
        """Load weights and run the backend's own dummy run; returns facts (versions, seconds, bytes).

        Raises any exception when that fails; the process is then not used again.
        """

    def generate(self, request: Generate, progress: Progress, picture: Picture | None = None) -> Generation:
        """Make one video, reporting each denoising step; with `picture`, one that starts from it.

        Raises GenerationCancelled, RequestRefused, or anything else for a failure of the engine.
        """

    def cancel(self, job: str) -> None:
        """Stop that job before its next denoising step. Thread-safe; unknown jobs are ignored."""

    def healthy(self) -> bool:
        """After a failed generation: whether the device still answers."""

    def close(self) -> None:
        """Release the device."""
