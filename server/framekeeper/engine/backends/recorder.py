"""What happens during one generation in this process: phases, steps, seconds, experts, and the cancel."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from framekeeper.engine.backends.backend import GenerationCancelled, Progress, StepReport

if TYPE_CHECKING:
    from framekeeper.engine.backends.device import Device
    from framekeeper.engine.protocol import Generate, PhaseName


class Recorder:
    """One attempt. `cancelled` may be set by any thread; everything else is the engine's thread's."""

    def __init__(self, request: Generate, progress: Progress, device: Device) -> None:
        self.request = request
        self.cancelled = False
        self.seconds: dict[str, float] = {}
        self.expert_steps: dict[int, int] = {}
        self._progress = progress
        self._device = device
        self._steps = self._step = 0
        self._expert: int | None = None
        self._phase: str | None = None
        self._since = self._phase_since = time.monotonic()

    def enter(self, phase: PhaseName) -> None:
        """Begin a phase; the one before it ends here, with all work that it queued."""
        self.close()
        self._phase = phase
        self._progress.phase(phase)

    def close(self) -> None:
        """End the phase that is open, if one is."""
        self._device.synchronize()
        now = time.monotonic()
        if self._phase is not None:
            self.seconds[self._phase] = self.seconds.get(self._phase, 0.0) + now - self._phase_since
        self._phase, self._phase_since = None, now

    def begin_steps(self, steps: int) -> None:
        """The denoising loop begins. Raises GenerationCancelled when it must not."""
        self._steps, self._step = steps, 0
        self._report()

    def used(self, expert: int) -> None:
        """Transformer `expert` runs in this step."""
        self._expert = expert

    def finish_step(self) -> None:
        """A step was queued: wait for it and report it. Raises GenerationCancelled before the next one."""
        self._device.synchronize()
        self._step += 1
        if self._expert is not None:
            self.expert_steps[self._expert] = self.expert_steps.get(self._expert, 0) + 1
        self._report()

    def _report(self) -> None:
        now = time.monotonic()
        self._progress.step(
            StepReport(
                step=self._step,
                steps=self._steps,
                seconds=now - self._since,
                memory_bytes=self._device.memory(),
                expert=self._expert,
            )
        )
        self._since = now
        self._expert = None
        if self.cancelled and self._step < self._steps:
            raise GenerationCancelled(self._step)
