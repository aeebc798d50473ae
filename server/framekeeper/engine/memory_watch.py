"""Memory after each job: steady growth ends in a planned recycle between jobs, not in a crash during one.

The first video is fine and the second or third runs out of memory is a known pattern
(https://github.com/vllm-project/vllm-omni/issues/6400).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise

#: Jobs that must each leave more behind than the one before.
JOBS = 6
#: Growth over these jobs that is worth a restart of some seconds to minutes, in bytes.
GROWTH = 512 * 1024 * 1024
#: Share of the host's memory limit above which a worker is recycled before the kernel ends it.
LIMIT_SHARE = 0.9


@dataclass
class MemoryWatch:
    """What a worker held after each of its jobs, in bytes; one watch a process.

    `resident` is the resident set of the worker's processes, `allocated` what its device allocator holds.
    """

    limit_bytes: int | None = None
    _resident: deque[int] = field(default_factory=lambda: deque(maxlen=JOBS + 1))
    _allocated: deque[int] = field(default_factory=lambda: deque(maxlen=JOBS + 1))

    def after_job(self, *, resident: int, allocated: int) -> str | None:
        """Note one job; returns the reason to recycle the worker now, or None."""
        self._resident.append(resident)
        self._allocated.append(allocated)
        if self.limit_bytes and resident > LIMIT_SHARE * self.limit_bytes:
            return (
                f"the engine holds {_gib(resident)} of host memory, "
                f"more than {LIMIT_SHARE:.0%} of the limit of {_gib(self.limit_bytes)}"
            )
        for what, values in (("host memory", self._resident), ("device memory", self._allocated)):
            if grows_steadily(list(values)):
                first, last = _gib(values[0]), _gib(values[-1])
                return f"{what} grew after each of the last {JOBS} jobs, from {first} to {last}"
        return None


def grows_steadily(values: list[int]) -> bool:
    """Whether each value is larger than the one before, over enough jobs, by an amount that matters."""
    if len(values) <= JOBS:
        return False
    rises = all(after > before for before, after in pairwise(values))
    return rises and values[-1] - values[0] >= GROWTH


def _gib(value: int) -> str:
    return f"{value / 1024**3:.2f} GiB"
