"""Whether a request can be made by an engine, decided before anything is queued.

Pure: fields of a request and the registered engines in, the resolved request out, or one error that names
every fault. What is admitted here reaches only engines that can do it (see shape.py).
"""

from __future__ import annotations

import difflib
import math
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from framekeeper.errors import InvalidRequest, ModelNotFound, NoEngine
from framekeeper.jobs.engines import Engine, EngineState
from framekeeper.jobs.fields import Fields, shown
from framekeeper.jobs.reference import NAMES as REFERENCES
from framekeeper.jobs.reference import Reference, read_reference, resolved, size_like
from framekeeper.jobs.shape import FRAMES_PER_LATENT, PIXELS_PER_TOKEN, parse_size
from framekeeper.jobs.upstream import NAMES as UPSTREAM
from framekeeper.jobs.upstream import read_upstream, unpack
from framekeeper.jobs.video import VideoRequest
from framekeeper.jobs.wishes import FIELDS as WISHES
from framekeeper.jobs.wishes import Wishes, read_wishes

#: Longest prompt. The encoder cuts at 512 tokens anyway; this bounds what is stored.
MAX_PROMPT = 10_000
#: The rotary embedding of Wan covers 1024 patches an axis
#: (https://huggingface.co/docs/diffusers/api/models/wan_transformer_3d, rope_max_seq_len).
MAX_SIDE = 1024 * PIXELS_PER_TOKEN
MAX_FPS = 60
MAX_GUIDANCE = 30
MAX_FLOW_SHIFT = 100
MAX_SEED = 2**63 - 1
#: Longest a video could be asked for; what is made is bounded by the frames that the engine admits.
MAX_SECONDS = 3600
#: Seeds that we draw fit into what every client language holds exactly.
DRAWN_SEEDS = 2**32

KNOWN = (
    "model", "prompt", "negative_prompt", "size", "width", "height", "seconds", "num_frames", "fps",
    "num_inference_steps", "guidance_scale", "guidance_scale_2", "boundary_ratio", "flow_shift", "seed",
    *REFERENCES, *WISHES,
)  # fmt: skip

SIZE = re.compile(r"([0-9]{1,6})x([0-9]{1,6})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Limits:
    """The largest jobs of one engine."""

    area: int
    size: str
    num_frames: int
    steps: int
    reduced: str | None = None
    #: Pixels that each side is a multiple of.
    multiple: int = PIXELS_PER_TOKEN

    @classmethod
    def of(cls, engine: Engine) -> Limits:
        """Those that an engine registered."""
        width, height = parse_size(engine.admits["size"])
        return cls(
            area=width * height,
            size=engine.admits["size"],
            num_frames=engine.admits["num_frames"],
            steps=engine.admits["num_inference_steps"],
            reduced=engine.reduced,
            multiple=engine.admits.get("multiple", PIXELS_PER_TOKEN),
        )

    def admit(self, width: int, height: int, num_frames: int, steps: int) -> bool:
        """Whether that engine can make this."""
        return width * height <= self.area and num_frames <= self.num_frames and steps <= self.steps


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request that an engine can make, with every default filled in, and what is wished beside it."""

    model: str
    request: VideoRequest
    wishes: Wishes
    #: The picture that it starts from.
    reference: Reference | None = None


def admit(
    fields: Mapping[str, Any],
    engines: Sequence[Engine],
    *,
    draw_seed: Callable[[], int] = lambda: secrets.randbelow(DRAWN_SEEDS),
    now: datetime | None = None,
) -> Admitted:
    """Raises InvalidRequest with all faults at once, ModelNotFound, or NoEngine. `now` is for deadlines."""
    read = Fields(unpack(resolved(fields)))
    model, serving = _choose_model(read, engines)
    limits = [Limits.of(engine) for engine in serving]
    defaults = _representative(serving).defaults

    prompt = _read_prompt(read)
    negative = read.text("negative_prompt", longest=MAX_PROMPT)
    reference = read_reference(read, model, serving, engines)
    width, height = _read_size(read, defaults, limits, reference)
    fps = _or_default(read.integer("fps", 1, MAX_FPS), defaults.get("fps"))
    num_frames = _read_frames(read, defaults, limits, None if read.faulty("fps") else fps)
    steps = _read_steps(read, defaults, limits)
    guidance = read.number("guidance_scale", 0, MAX_GUIDANCE)
    guidance_2 = read.number("guidance_scale_2", 0, MAX_GUIDANCE)
    boundary = read.number("boundary_ratio", 0, 1)
    flow_shift = read.number("flow_shift", 0, MAX_FLOW_SHIFT, above=True)
    seed = read.integer("seed", 0, MAX_SEED)
    wishes = read_wishes(read, now or datetime.now(UTC))
    _refuse_other_fields(read)
    if not read.faults:
        _check_together(read, limits, (width, height, num_frames, steps))
    read.raise_faults()

    request = VideoRequest(
        prompt=prompt,
        negative_prompt=_or_default(negative, defaults.get("negative_prompt")),
        width=width,
        height=height,
        num_frames=num_frames,
        fps=fps,
        num_inference_steps=steps,
        guidance_scale=_or_default(guidance, defaults["guidance_scale"]),
        guidance_scale_2=_or_default(guidance_2, defaults.get("guidance_scale_2")),
        boundary_ratio=_or_default(boundary, defaults.get("boundary_ratio")),
        flow_shift=_or_default(flow_shift, defaults.get("flow_shift")),
        seed=draw_seed() if seed is None else seed,
    )
    return Admitted(model, request, wishes, reference)


def _or_default(value: Any, default: Any) -> Any:
    return default if value is None else value


def _choose_model(read: Fields, engines: Sequence[Engine]) -> tuple[str, list[Engine]]:
    models = sorted({engine.model for engine in engines})
    if not models:
        raise NoEngine(retry_after=10)
    choices = ", ".join(models)
    wanted = read.values.get("model")
    if wanted is None:
        if len(models) > 1:
            raise InvalidRequest(
                f"model is missing and several are served: set one of {choices}.", param="model"
            )
        wanted = models[0]
    elif not isinstance(wanted, str):
        raise InvalidRequest(f"model={shown(wanted)} is not text: set one of {choices}.", param="model")
    serving = [engine for engine in engines if engine.model == wanted]
    if not serving:
        raise ModelNotFound(f"model={shown(wanted)} is not served here: set one of {choices}.", param="model")
    return wanted, serving


def _representative(serving: Sequence[Engine]) -> Engine:
    """The engine whose defaults hold: always the same one while the same engines run."""
    return min(serving, key=lambda engine: (engine.state is EngineState.STOPPED, engine.id))


def _read_prompt(read: Fields) -> str:
    prompt = read.text("prompt", longest=MAX_PROMPT)
    if not read.present("prompt"):
        read.refuse("prompt", "prompt is missing: set a text that says what the video shows.")
    elif prompt is not None and not prompt.strip():
        read.refuse("prompt", "prompt is blank: set a text that says what the video shows.")
    return prompt or ""


def _read_size(
    read: Fields, defaults: Mapping[str, Any], limits: Sequence[Limits], reference: Reference | None
) -> tuple[int, int]:
    """Width and height from `size`, from `width` and `height`, from the picture, or the default.

    (0, 0) where a fault was noted.
    """
    faults = len(read.faults)
    pair = _read_width_and_height(read)
    size = _read_size_text(read)
    if len(read.faults) > faults:
        return 0, 0
    if size and pair and size != pair:
        read.refuse(
            "size",
            f"size={read.values['size']} contradicts width={pair[0]} and height={pair[1]}: set only one.",
        )
        return 0, 0
    largest = max(limits, key=lambda limit: limit.area)
    multiple = max(limit.multiple for limit in limits)
    width, height = size or pair or parse_size(defaults["size"])
    if reference and not (size or pair):
        width, height = size_like(reference, defaults["size"], largest.area, multiple)
    if (size or pair) and not _check_sides(read, "size" if size else "width", (width, height), multiple):
        return 0, 0
    if width * height > largest.area:
        fitting = "{}x{}".format(*_shrink(width, height, largest.area, multiple))
        read.refuse(
            "size" if size or not pair else "width",
            f"size={width}x{height} is {width * height} pixels, the most is {largest.area} "
            f"(as in {largest.size}): set {fitting}, which is nearest to this aspect, or smaller."
            + _at_present(limits),
        )
        return 0, 0
    return width, height


def _read_size_text(read: Fields) -> tuple[int, int] | None:
    value = read.values.get("size")
    if value is None:
        return None
    match = SIZE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        read.refuse("size", f"size={shown(value)} is not of the form WIDTHxHEIGHT: set for example 832x480.")
        return None
    return int(match[1]), int(match[2])


def _read_width_and_height(read: Fields) -> tuple[int, int] | None:
    if not read.present("width") and not read.present("height"):
        return None
    for given, missing in (("width", "height"), ("height", "width")):
        if not read.present(missing):
            read.refuse(missing, f"{missing} is missing beside {given}: set both, or size=WIDTHxHEIGHT.")
    # Their range is told in one place, with the multiple of 16.
    width, height = (read.integer(name, -MAX_SEED, MAX_SEED, "set pixels") for name in ("width", "height"))
    return (width, height) if width is not None and height is not None else None


def _check_sides(read: Fields, param: str, size: tuple[int, int], multiple: int) -> bool:
    faults = []
    for name, side in zip(("width", "height"), size, strict=True):
        if not multiple <= side <= MAX_SIDE:
            faults.append(f"the {name} {side} is not within {multiple}..{MAX_SIDE}")
        elif side % multiple:
            faults.append(f"the {name} {side} is not a multiple of {multiple}")
    if faults:
        nearest = "x".join(str(_nearest_side(side, multiple)) for side in size)
        read.refuse(param, f"size={size[0]}x{size[1]}: {' and '.join(faults)}: set {nearest}.")
    return not faults


def _nearest_side(side: int, multiple: int) -> int:
    nearest = (side + multiple // 2) // multiple * multiple
    return min(MAX_SIDE, max(multiple, nearest))


def _shrink(width: int, height: int, area: int, multiple: int) -> tuple[int, int]:
    """The largest size of about this aspect whose area fits."""
    scale = math.sqrt(area / (width * height))
    short, long = sorted((width, height))
    short = max(multiple, int(short * scale) // multiple * multiple)
    long = min(int(long * scale), area // short, MAX_SIDE) // multiple * multiple
    return (short, long) if width < height else (long, short)


def _read_frames(read: Fields, defaults: Mapping[str, Any], limits: Sequence[Limits], fps: int | None) -> int:
    """The number of frames from `num_frames` or from `seconds`; 0 where a fault was noted."""
    most = max(limit.num_frames for limit in limits)
    frames = _read_num_frames(read, most, _at_present(limits))
    seconds = read.number("seconds", 0, MAX_SECONDS, above=True)
    if read.faulty("num_frames") or read.faulty("seconds") or (seconds is not None and fps is None):
        return 0
    if seconds is None or fps is None:
        return frames if frames is not None else int(defaults["num_frames"])
    from_seconds = _nearest_frames(seconds * fps)
    meaning = f"seconds={shown(read.values['seconds'])} at fps={fps} is {from_seconds} frames"
    if from_seconds > most:
        advice = f"set at most {_at_most(most) / fps:.4g} seconds, or a lower fps"
        read.refuse("seconds", f"{meaning}, the most is {most}: {advice}.{_at_present(limits)}")
    elif frames is not None and frames != from_seconds:
        read.refuse("seconds", f"{meaning} and contradicts num_frames={frames}: set one of the two.")
    return from_seconds


def _at_present(limits: Sequence[Limits]) -> str:
    reasons = [limit.reduced for limit in limits if limit.reduced]
    return f" {reasons[0]}" if reasons else ""


def _read_num_frames(read: Fields, most: int, why: str) -> int | None:
    largest = _at_most(most)
    frames = read.integer("num_frames", 1, largest, f"set 4k+1 frames from 1 to {largest}{why and '.' + why}")
    if frames is not None and frames % FRAMES_PER_LATENT != 1:
        below = _at_most(frames)
        read.refuse(
            "num_frames",
            f"num_frames={frames} is not 4k+1, and the model makes one frame and then four at a time: "
            f"set {below} or {below + FRAMES_PER_LATENT}.",
        )
    return frames


def _at_most(frames: int) -> int:
    """The largest 4k+1 up to here."""
    return (frames - 1) // FRAMES_PER_LATENT * FRAMES_PER_LATENT + 1


def _nearest_frames(frames: float) -> int:
    return max(0, math.floor((frames - 1) / FRAMES_PER_LATENT + 0.5)) * FRAMES_PER_LATENT + 1


def _read_steps(read: Fields, defaults: Mapping[str, Any], limits: Sequence[Limits]) -> int:
    steps = read.integer("num_inference_steps", 1, max(limit.steps for limit in limits))
    return steps if steps is not None else int(defaults["num_inference_steps"])


def _refuse_other_fields(read: Fields) -> None:
    read_upstream(read)
    for name in read.values:
        if name not in KNOWN and name not in UPSTREAM:
            nearest = difflib.get_close_matches(name, KNOWN, n=1)
            hint = f"did you mean {nearest[0]}?" if nearest else f"known are {', '.join(KNOWN)}."
            read.refuse(name, f"{shown(name)} is not a known field: {hint}")


def _check_together(read: Fields, limits: Sequence[Limits], wanted: tuple[int, int, int, int]) -> None:
    """Each value may be within some engine's limits while no single engine admits all of them."""
    if not any(limit.admit(*wanted) for limit in limits):
        width, height, num_frames, steps = wanted
        offers = " or ".join(
            sorted({f"{one.size} with {one.num_frames} frames and {one.steps} steps" for one in limits})
        )
        read.refuse(
            "size",
            f"No engine admits size={width}x{height} together with num_frames={num_frames} and "
            f"num_inference_steps={steps}: stay within {offers}.",
        )
