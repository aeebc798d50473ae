"""How long a job will take an engine, from what others took. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from framekeeper.jobs.measured import Measured
from framekeeper.jobs.shape import tokens

#: Tokens at which self-attention costs as much as all that grows linearly. A layer of Wan2.2 14B has width
#: 5120 and a feed-forward of 13824 (https://huggingface.co/Wan-AI/Wan2.2-T2V-A14B-Diffusers, its
#: transformer/config.json): six 5120x5120 projections and the feed-forward are 597 MFLOP a token, attention
#: is 4 * 5120 FLOP a pair of tokens.
EVEN_TOKENS = 29_000
#: Never less than this part of the nearest measured time, whatever a line through all of them says.
LEAST = 0.2


def cost(width: int, height: int, num_frames: int, steps: int) -> float:
    """Work of a job, in tokens and steps; attention grows with their square."""
    count = tokens(width, height, num_frames)
    return steps * (count + count * count / EVEN_TOKENS)


def estimate(
    shape: tuple[int, int, int], steps: int, measured: Sequence[Measured], *, profile: str | None = None
) -> float | None:
    """Seconds that a job of (width, height, num_frames) takes an engine; None where nothing was measured.

    The median of the same shape and steps where there is one. Otherwise by the work: a straight line through
    what was measured where several amounts of work were, proportional where only one was. Where several
    profiles serve the model, their median, or only `profile` where it is given and was measured.
    """
    if profile is not None:
        measured = [each for each in measured if each.profile == profile] or measured
    if not measured:
        return None
    same = [
        each.seconds
        for each in measured
        if (each.width, each.height, each.num_frames) == shape and each.steps == steps
    ]
    if same:
        return median(same)
    work = cost(*shape, steps)
    points = [(cost(each.width, each.height, each.num_frames, each.steps), each.seconds) for each in measured]
    near, seconds = min(points, key=lambda point: max(point[0], work) / min(point[0], work))
    proportional = seconds * work / near
    line = _line(points)
    if line is None:
        return proportional
    base, slope = line
    return max(base + slope * work, seconds * LEAST if work >= near else proportional)


def _line(points: Sequence[tuple[float, float]]) -> tuple[float, float] | None:
    """Least squares, base and slope; None where the points allow none that makes sense."""
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    if spread <= 1e-9 * mean_x * mean_x:
        return None
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
    base = mean_y - slope * mean_x
    return (base, slope) if slope > 0 and base >= 0 else None
