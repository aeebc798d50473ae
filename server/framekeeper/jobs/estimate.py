"""How long a job will take an engine, from what others took. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from statistics import median

from framekeeper.jobs.measured import Measured
from framekeeper.jobs.shape import tokens

#: Tokens at which self-attention costs as much as all that grows linearly. A layer of Wan2.2 14B has width
#: 5120 and a feed-forward of 13824 (https://huggingface.co/Wan-AI/Wan2.2-T2V-A14B-Diffusers, its
#: transformer/config.json): six 5120x5120 projections and the feed-forward are 597 MFLOP a token, attention
#: is 4 * 5120 FLOP a pair of tokens.
EVEN_TOKENS = 29_000
#: What is known of the five parts of `parts` before anything was measured, in units of a step's linear work:
#: decoding and encoding take about as much a token (docs/verified.md), and nothing is a constant.
EXPECTED = (0.0, 1.0, 0.0, 1.0, 1 / EVEN_TOKENS)
#: How many measurements that knowledge is worth. Little: the small model on a CPU is mostly constants.
WEIGHT = 0.02
ROUNDS = 500

Shape = tuple[int, int, int]
Parts = tuple[float, float, float, float, float]


def parts(width: int, height: int, num_frames: int, steps: int) -> Parts:
    """What a job's time is made of: itself, its tokens, its steps, the tokens in them, and their pairs."""
    count = tokens(width, height, num_frames)
    return 1.0, float(count), float(steps), float(steps * count), float(steps) * count * count


def estimate(
    shape: Shape, steps: int, measured: Sequence[Measured], *, profile: str | None = None
) -> float | None:
    """Seconds that a job of (width, height, num_frames) takes an engine; None where nothing was measured.

    The median of the same shape and steps where there is one. Otherwise the sum of its parts, whose seconds
    are fitted to what was measured. Where several profiles serve the model, their median, or only `profile`
    where it is given and was measured.
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
    seconds = _fitted(tuple(measured))
    return _sum(seconds, parts(*shape, steps))


def _sum(seconds: Sequence[float], of: Sequence[float]) -> float:
    return sum(each * part for each, part in zip(seconds, of, strict=True))


@lru_cache(maxsize=64)
def _fitted(measured: tuple[Measured, ...]) -> Parts:
    """Seconds of each part, none below nothing: least squares of the relative errors, by coordinates.

    A few measurements do not determine five parts; what is open comes from EXPECTED, in the measured units.
    """
    rows = [parts(each.width, each.height, each.num_frames, each.steps) for each in measured]
    # By relative error: a second too much is nothing for a job of an hour.
    scaled = [
        [part / max(each.seconds, 1e-3) for part in row] for row, each in zip(rows, measured, strict=True)
    ]
    unit = median(1 / _sum(EXPECTED, row) for row in scaled)
    prior = [unit * each for each in EXPECTED]
    count = len(prior)
    # How much of a measured job each part would be if it were all of it.
    size = [sum(row[j] for row in scaled) / len(scaled) for j in range(count)]
    gram = [[sum(row[i] * row[j] for row in scaled) for j in range(count)] for i in range(count)]
    right = [sum(row[i] for row in scaled) for i in range(count)]
    for i in range(count):
        gram[i][i] += WEIGHT * size[i] ** 2
        right[i] += WEIGHT * size[i] ** 2 * prior[i]
    found = list(prior)
    for _ in range(ROUNDS):
        for i in range(count):
            others = sum(gram[i][j] * found[j] for j in range(count) if j != i)
            found[i] = max(0.0, (right[i] - others) / gram[i][i])
    return found[0], found[1], found[2], found[3], found[4]
