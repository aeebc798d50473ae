"""How long a silent denoising step may last: measured, with the profile's value as the bound."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

#: A step that takes so many times the usual one is hung, not slow.
FACTOR = 10.0
#: Below this a pause of the machine looks like a hang.
FLOOR_SECONDS = 5.0
#: Steps of this job that are needed before they say anything; the first one may compile.
LEAST = 2


@dataclass
class StepClock:
    """The steps of one job. `bound_seconds` is the profile's deadlines.step_seconds."""

    bound_seconds: float
    _measured: list[float] = field(default_factory=list)

    def note(self, seconds: float) -> None:
        """A step was finished in so many seconds."""
        self._measured.append(seconds)

    @property
    def allowed_seconds(self) -> float:
        """Silence that is allowed during the next step."""
        if len(self._measured) < LEAST:
            return self.bound_seconds
        usual = statistics.median(self._measured)
        return min(self.bound_seconds, max(FLOOR_SECONDS, FACTOR * usual))
