"""The profile: everything an operator decides about one engine, as one validated record.

Keys, units and meanings are the fields' descriptions; `framekeeper profile schema` exports them for editors.
A profile says what should run, `facts.HostFacts` what the host is like; both give a `launch.Launch`.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

_SIZE = re.compile(r"([1-9][0-9]{0,4})x([1-9][0-9]{0,4})")
_BYTES = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(GiB|MiB|GB|MB)")
_UNITS = {"GiB": 1024**3, "MiB": 1024**2, "GB": 10**9, "MB": 10**6}


def parse_size(text: str) -> tuple[int, int]:
    """Width and height in pixels of a text such as "832x480". Raises ValueError on anything else."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError("must be WIDTHxHEIGHT in pixels, such as 832x480")
    return int(match[1]), int(match[2])


def parse_bytes(text: str) -> int:
    """Bytes of a text such as "64GiB" or "24GB". Raises ValueError on anything else."""
    match = _BYTES.fullmatch(text)
    if match is None:
        raise ValueError("must be a number with a unit, such as 64GiB")
    return int(float(match[1]) * _UNITS[match[2]])


def _check_size(text: str) -> str:
    parse_size(text)
    return text


def _check_bytes(text: str) -> str:
    parse_bytes(text)
    return text


def _capability_text(value: Any) -> Any:
    # YAML reads an unquoted 9.0 as a number; both spellings mean the same card.
    return str(float(value)) if isinstance(value, int | float) and not isinstance(value, bool) else value


SizeText = Annotated[str, AfterValidator(_check_size)]
BytesText = Annotated[str, AfterValidator(_check_bytes)]
Capability = Annotated[str, BeforeValidator(_capability_text), Field(pattern=r"^[0-9]+\.[0-9]$")]
Word = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,79}$")]
Count = Annotated[int, Field(ge=1, le=64)]
Seconds = Annotated[float, Field(gt=0, le=86_400)]
Pictures = Literal["none", "optional", "required"]


class Section(BaseModel):
    """Base of all parts of a profile: immutable, no unknown keys, no silent conversion of types."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Devices(Section):
    """The devices of one group, which one engine owns alone."""

    count: Count = Field(1, description="Devices in one group.")
    kind: Literal["cpu", "cuda"] = Field("cuda", description="What a device is.")
    uuids: Literal["auto"] | Annotated[tuple[Word, ...], Field(strict=False, min_length=1)] = Field(
        "auto", description="UUIDs of the cards, GPU-…, for all groups in order; `auto` takes them as found."
    )


class Parallel(Section):
    """How many devices share each kind of work; see vllm-omni's `DiffusionParallelConfig`."""

    tensor: Count = Field(1, description="Tensor parallel size: heads and hidden units are split.")
    ulysses: Count = Field(1, description="Ulysses sequence parallel degree: heads are exchanged for tokens.")
    ring: Count = Field(1, description="Ring sequence parallel degree.")
    pipeline: Count = Field(1, description="Pipeline parallel size.")
    cfg: Annotated[int, Field(ge=1, le=2)] = Field(
        1, description="2 runs the positive and the negative pass on different devices."
    )
    vae: Count = Field(1, description="Devices that decode patches of the video in parallel.")
    hsdp: Count = Field(1, description="Weight shards of hybrid sharded data parallelism; 1 is off.")


class Vae(Section):
    """How latents become frames."""

    tiling: bool = Field(True, description="Decode in tiles; without it 720p needs far more memory.")
    slicing: bool = Field(False, description="Decode one video of a batch at a time.")
    fast_path: Literal["off", "lossless", "channels_last"] = Field(
        "lossless",
        description="vllm-omni's rewritten Wan decoder on CUDA; channels_last also changes the layout.",
    )


class Allocator(Section):
    """The CUDA caching allocator; written to the variable that the runtime's torch reads."""

    expandable_segments: bool = Field(False, description="Grow segments by mapping; see the rules about it.")
    max_split_size_mb: Annotated[int, Field(ge=1)] | None = Field(
        None, description="Blocks larger than this are never split, in MiB; torch wants more than 20."
    )
    garbage_collection_threshold: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None, description="Share of the memory in use above which cached blocks are given back."
    )
    roundup_power2_divisions: Annotated[int, Field(ge=1, le=64)] | None = Field(
        None, description="Steps between powers of two that sizes are rounded up to."
    )
    max_non_split_rounding_mb: Annotated[int, Field(ge=1)] | None = Field(
        None,
        description="How much larger than asked for an unsplit cached block may be, in MiB.",
    )
    backend: Literal["native", "cudaMallocAsync"] = Field("native", description="Allocator implementation.")


class Admits(Section):
    """The largest job that is accepted."""

    size: SizeText = Field(description="WIDTHxHEIGHT whose area is the largest accepted; any aspect ratio.")
    num_frames: Annotated[int, Field(ge=1, le=1_000)] = Field(description="Most frames, 4k+1.")
    num_inference_steps: Annotated[int, Field(ge=1, le=1_000)] = Field(
        50, description="Most denoising steps."
    )
    image: Pictures = Field(
        "none",
        description="Whether a video may (optional) or must (required) start from a picture; warm-up has one "
        "then.",
    )

    @property
    def area(self) -> int:
        """Largest accepted width × height, in pixels."""
        width, height = parse_size(self.size)
        return width * height


class Defaults(Section):
    """What a request gets that does not say otherwise."""

    size: SizeText = Field(description="WIDTHxHEIGHT in pixels.")
    num_frames: Annotated[int, Field(ge=1, le=1_000)] = Field(description="Frames, 4k+1.")
    fps: Annotated[int, Field(ge=1, le=120)] = Field(16, description="Frames per second of the file.")
    num_inference_steps: Annotated[int, Field(ge=1, le=1_000)] = Field(description="Denoising steps.")
    guidance_scale: Annotated[float, Field(ge=0, le=30)] = Field(
        description="Guidance of the first (high-noise) expert; 1 turns the negative pass off."
    )
    guidance_scale_2: Annotated[float, Field(ge=0, le=30)] | None = Field(
        None, description="Guidance of the second (low-noise) expert."
    )
    boundary_ratio: Annotated[float, Field(ge=0, le=1)] | None = Field(
        None, description="Share of the noise schedule at which the second expert takes over."
    )
    flow_shift: Annotated[float, Field(gt=0, le=50)] | None = Field(
        None, description="Shift of the schedule."
    )
    negative_prompt: str | None = Field(None, description="Used where a request has none.")

    @property
    def width(self) -> int:
        """Pixels."""
        return parse_size(self.size)[0]

    @property
    def height(self) -> int:
        """Pixels."""
        return parse_size(self.size)[1]


class WarmUp(Section):
    """The real job that proves readiness. Size and frames default to the largest that is admitted."""

    size: SizeText | None = Field(None, description="WIDTHxHEIGHT in pixels.")
    num_frames: Annotated[int, Field(ge=1, le=1_000)] | None = Field(None, description="Frames, 4k+1.")
    num_inference_steps: Annotated[int, Field(ge=1, le=100)] = Field(
        4, description="Few, but so many that both experts run."
    )
    deadline_seconds: Seconds = Field(description="The group is killed when the warm-up takes longer.")


class Deadlines(Section):
    """After how many seconds a silent engine counts as hung and its whole process group is killed."""

    load_seconds: Seconds = Field(description="From the start of the process to loaded weights.")
    step_seconds: Seconds = Field(description="For one denoising step at the largest admitted shape.")
    decode_seconds: Seconds = Field(description="From the last step to the finished file.")
    job_seconds: Seconds = Field(description="For one job as a whole.")


class Host(Section):
    """What the host must have; checked before anything holds a card."""

    memory: BytesText | None = Field(None, description="Least memory of the container, such as 128GiB.")
    shm: BytesText | None = Field(None, description="Least /dev/shm, such as 16GiB.")
    gpu_memory: BytesText | None = Field(None, description="Memory of the card this profile was made for.")
    compute_capabilities: Annotated[tuple[Capability, ...], Field(strict=False)] = Field(
        (), description="Cards this profile is for, such as [9.0]; empty leaves it to the runtime."
    )
    driver: Annotated[str, Field(pattern=r"^[0-9]+(\.[0-9]+)*$")] | None = Field(
        None, description="Oldest driver, where the profile needs a newer one than its runtime."
    )


class Rung(Section):
    """One step down: what changes, on top of all rungs before it, after failures that call for it."""

    name: Word = Field(description="Said in states, logs and metrics.")
    change: dict[str, Any] = Field(description="Keys of the profile and their values on this rung.")


Verified = Literal["no", "cpu", "memory", "hardware"]


def _verified_word(value: Any) -> Any:
    return "no" if value is False else value


class Profile(Section):
    """One engine's whole configuration; see docs/profiles.md."""

    name: Word = Field(description="Name of the file without its ending; filled in when it is read.")
    extends: Word | None = Field(None, description="Profile in the same directory that this one changes.")
    serves: Word = Field(description="Model name that clients ask for; queues are named by it.")
    runtime: Word = Field(description="Name of the pinned set of packages, a directory of docker/runtimes.")
    backend: Literal["vllm_omni", "diffusers", "fault"] = Field(
        "vllm_omni", description="Code that runs the model."
    )
    model: Annotated[str, Field(min_length=1)] = Field(
        description="Directory of the checkpoint, or owner/name@revision (40 hex digits) of the hub cache."
    )
    devices: Devices = Devices()
    parallel: Parallel = Parallel()
    dtype: Literal["bfloat16", "float16", "float32"] = Field("bfloat16", description="Type of the weights.")
    attention: Literal["auto", "flash_attn", "torch_sdpa", "sage_attn"] = Field(
        "auto", description="Attention kernel; auto leaves it to the backend."
    )
    offload: Literal["none", "model", "layerwise"] = Field(
        "none", description="What waits in host memory: nothing, whole models, or all layers but a few."
    )
    offload_pin_memory: bool = Field(True, description="Keep offloaded weights in page-locked memory.")
    offload_prefetch: Literal["async", "sync"] = Field(
        "async", description="sync copies the next layer on the compute stream, blocking."
    )
    executor: Literal["in_process", "multiprocess"] = Field(
        "in_process", description="Whether the backend runs in the worker's own process."
    )
    compile: Literal["off", "regional", "full"] = Field(
        "off", description="torch.compile: not, by block, or whole."
    )
    quantization: Literal["none", "fp8", "int8"] = Field("none", description="Of the linear layers' weights.")
    attention_quantization: Literal["none", "fp8"] = Field(
        "none", description="Of queries, keys and values of the self-attention, in FlashAttention 3."
    )
    cache: Literal["none", "teacache", "cache_dit"] = Field(
        "none", description="Reuse of results between steps."
    )
    vae: Vae = Vae()
    allocator: Allocator = Allocator()
    defaults: Defaults
    admits: Admits
    warm_up: WarmUp
    deadlines: Deadlines
    host: Host = Host()
    fallbacks: Annotated[tuple[Rung, ...], Field(strict=False)] = Field(
        (), description="Rungs of the ladder, in order."
    )
    accept_risk: dict[str, Annotated[str, Field(min_length=10)]] = Field(
        {}, description="Rule id and the reason why it may be broken here; only where it was measured."
    )
    verified: Annotated[Verified, BeforeValidator(_verified_word)] = Field(
        "no",
        description="Where this profile ran: no, cpu, memory (a larger card, the rest filled), hardware.",
    )

    @property
    def experts(self) -> int:
        """Transformers that a job must have used: 2 where the boundary lies inside the schedule."""
        ratio = self.defaults.boundary_ratio
        return 2 if ratio is not None and 0 < ratio < 1 else 1

    @property
    def warm_up_size(self) -> tuple[int, int]:
        """Width and height of the warm-up video in pixels."""
        return parse_size(self.warm_up.size or self.admits.size)

    @property
    def warm_up_frames(self) -> int:
        """Frames of the warm-up video."""
        return self.warm_up.num_frames or self.admits.num_frames
