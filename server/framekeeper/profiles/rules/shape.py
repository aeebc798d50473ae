"""Rules about the shape of videos, the schedule and the two experts."""

from __future__ import annotations

from collections.abc import Iterator

from framekeeper.profiles.facts import HostFacts
from framekeeper.profiles.memory import budget, card_memory
from framekeeper.profiles.rules.rule import Finding, omni_source, rule
from framekeeper.profiles.schema import Profile, parse_size
from framekeeper.profiles.wan import architecture, square

_PIPELINE = omni_source("diffusion/models/wan2_2/pipeline_wan2_2.py")
_OMNI = "https://github.com/vllm-project/vllm-omni"
# vllm-omni's own default where a profile says nothing.
_FLOW_SHIFT = 5.0
# As many as a warm-up may have.
_MOST_STEPS = 100


def _frame_counts(profile: Profile) -> Iterator[tuple[str, int]]:
    yield "defaults.num_frames", profile.defaults.num_frames
    yield "admits.num_frames", profile.admits.num_frames
    if profile.warm_up.num_frames is not None:
        yield "warm_up.num_frames", profile.warm_up.num_frames


def _sizes(profile: Profile) -> Iterator[tuple[str, str]]:
    yield "defaults.size", profile.defaults.size
    yield "admits.size", profile.admits.size
    if profile.warm_up.size is not None:
        yield "warm_up.size", profile.warm_up.size


@rule("frames-4k-plus-1", _PIPELINE)
def frames_4k_plus_1(profile: Profile, _facts: HostFacts) -> Iterator[Finding]:
    """Frames are 4k+1: a latent frame holds four, the first stands alone. Others change silently."""
    for key, frames in _frame_counts(profile):
        if frames % 4 != 1:
            lower = max(1, frames - (frames - 1) % 4)
            yield Finding(
                key=key,
                value=str(frames),
                reason="is not 4k+1, and another number of frames would come out",
                advice=f"{key}: {lower} or {lower + 4}",
            )


@rule("size-in-tokens", _PIPELINE)
def size_in_tokens(profile: Profile, _facts: HostFacts) -> Iterator[Finding]:
    """Width and height are multiples of 16 (A14B) or 32 (TI2V-5B); vllm-omni rounds others down silently."""
    step = square(profile)
    for key, text in _sizes(profile):
        width, height = parse_size(text)
        if width % step or height % step:
            nearest = f"{max(1, round(width / step)) * step}x{max(1, round(height / step)) * step}"
            yield Finding(
                key=key,
                value=text,
                reason=f"is not made of whole {step}x{step} squares, and another size would come out",
                advice=f"{key}: {nearest}",
            )


@rule("defaults-admitted", f"{_OMNI}/issues/2327")
def defaults_admitted(profile: Profile, _facts: HostFacts) -> Iterator[Finding]:
    """A request that says nothing must be admitted."""
    width, height = parse_size(profile.defaults.size)
    for key, asked, most in (
        ("size", width * height, profile.admits.area),
        ("num_frames", profile.defaults.num_frames, profile.admits.num_frames),
        ("num_inference_steps", profile.defaults.num_inference_steps, profile.admits.num_inference_steps),
    ):
        if asked > most:
            yield Finding(
                key=f"defaults.{key}",
                value=str(getattr(profile.defaults, key)),
                reason=f"is more than admits.{key}: {getattr(profile.admits, key)}",
                advice=f"a smaller defaults.{key}, or a larger admits.{key}",
            )


@rule("boundary-missing", _PIPELINE)
def boundary_missing(profile: Profile, _facts: HostFacts) -> Iterator[Finding]:
    """A model of two experts needs boundary_ratio; vllm-omni guesses 0.875 and says so on every request."""
    model = architecture(profile)
    if model and model.experts == 2 and profile.defaults.boundary_ratio is None:
        yield Finding(
            key="defaults.boundary_ratio",
            value="null",
            reason=f"{model.name} has two experts, and nothing says where the second takes over",
            advice="defaults.boundary_ratio: 0.875",
        )


@rule("boundary-without-experts", _PIPELINE)
def boundary_without_experts(profile: Profile, _facts: HostFacts) -> Iterator[Finding]:
    """A model of one expert has no boundary: with one, its second half would have no transformer."""
    model = architecture(profile)
    if model and model.experts == 1 and profile.experts == 2:
        yield Finding(
            key="defaults.boundary_ratio",
            value=str(profile.defaults.boundary_ratio),
            reason=f"{model.name} has one expert",
            advice="leave defaults.boundary_ratio out",
        )


@rule("second-guidance-missing", f"{_OMNI}/issues/5415")
def second_guidance_missing(profile: Profile, _facts: HostFacts) -> Iterator[Finding]:
    """Two experts need two guidance scales; an omitted second one has skipped the negative pass."""
    if profile.experts == 2 and profile.defaults.guidance_scale_2 is None:
        yield Finding(
            key="defaults.guidance_scale_2",
            value="null",
            reason="the second expert would run without a scale of its own",
            advice="defaults.guidance_scale_2: 3.0",
        )


@rule("warm-up-of-both-experts", f"{_OMNI}/issues/6582", f"{_OMNI}/issues/1535")
def warm_up_of_both_experts(profile: Profile, _facts: HostFacts) -> Iterator[Finding]:
    """The warm-up's steps must reach the second expert, or half of the model is never proved.

    The last step starts at noise level shift / (steps + shift - 1) of Wan's shifted linear schedule.
    """
    ratio = profile.defaults.boundary_ratio
    if profile.experts == 2 and ratio is not None:
        shift = profile.defaults.flow_shift or _FLOW_SHIFT
        steps = profile.warm_up.num_inference_steps
        last = shift / (steps + shift - 1)
        if last >= ratio:
            needed = min(shift / ratio - shift + 1, _MOST_STEPS)
            more = f"warm_up.num_inference_steps: {int(needed) + 1} or more"
            yield Finding(
                key="warm_up.num_inference_steps",
                value=str(steps),
                reason=f"its last step starts at noise {last:.2f}, above the boundary {ratio}",
                advice=more if needed < _MOST_STEPS else "a larger defaults.boundary_ratio",
            )


@rule("warm-up-smaller-than-admitted", f"{_OMNI}/issues/6582", f"{_OMNI}/issues/6400", severity="warn")
def warm_up_smaller_than_admitted(profile: Profile, _facts: HostFacts) -> Iterator[Finding]:
    """A warm-up below the largest admitted shape does not prove that such a job fits."""
    width, height = profile.warm_up_size
    if width * height < profile.admits.area or profile.warm_up_frames < profile.admits.num_frames:
        yield Finding(
            key="warm_up",
            value=f"{width}x{height}, {profile.warm_up_frames} frames",
            reason=f"is less than is admitted: {profile.admits.size}, {profile.admits.num_frames} frames",
            advice="neither warm_up.size nor warm_up.num_frames",
        )


@rule("decode-without-tiles", f"{_OMNI}/issues/2327", severity="warn")
def decode_without_tiles(profile: Profile, _facts: HostFacts) -> Iterator[Finding]:
    """Without tiling, decoding takes far more memory than denoising; no matter where the card has it."""
    needed, there = budget(profile), card_memory(profile)
    if needed is not None and there is not None and needed.bytes <= there:
        return
    if not profile.vae.tiling and profile.devices.kind == "cuda":
        yield Finding(
            key="vae.tiling",
            value="false",
            reason="decoding whole frames took 8 to 10 GB at 832x480 and 18 to 21 GB at 1280x720 on an H200",
            advice="vae.tiling: true unless the card has that much to spare",
        )


RULES = (
    frames_4k_plus_1,
    size_in_tokens,
    defaults_admitted,
    boundary_missing,
    boundary_without_experts,
    second_guidance_missing,
    warm_up_of_both_experts,
    warm_up_smaller_than_admitted,
    decode_without_tiles,
)
