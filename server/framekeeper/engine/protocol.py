"""What supervisor and worker say to each other over their socket pair.

Every message is one msgpack map tagged by its type, preceded by its length as four bytes, big-endian
(see `channel.py`). Adding an optional field is compatible; anything else raises `VERSION`. Stored snapshots
of every message are in tests/engine/snapshots/protocol.json.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

VERSION = 1

PhaseName = Literal[
    "importing",  # the backend's libraries
    "loading",  # weights
    "dummy_run",  # the backend's own
    "warming",  # the real job that proves readiness
    "text_encoding",
    "denoising",
    "decoding",  # latents to frames
    "encoding",  # frames to MP4; the engine is free for the next job
]


class Message(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Base of all messages: immutable, tagged with the class name."""


class Load(Message, frozen=True):
    """Parent: load the model. `options` are the backend's own, resolved from the profile (see launch.py)."""

    backend: str
    model: str
    options: dict[str, Any]


class Generate(Message, frozen=True):
    """Parent: make one video. All values are resolved; the worker adds no default.

    `directory` is created by the worker; files in it are named by `attempt`. `image` is the absolute path of
    the picture that the video starts from, as it was uploaded: the worker fits it to width and height.
    """

    job: str
    attempt: int
    prompt: str
    negative_prompt: str | None
    width: int
    height: int
    num_frames: int
    fps: int
    num_inference_steps: int
    guidance_scale: float
    guidance_scale_2: float | None
    boundary_ratio: float | None
    flow_shift: float | None
    seed: int
    directory: str
    image: str | None = None


class WarmUp(Message, frozen=True):
    """Parent: prove that a real job works. Answered by `Ready` or `Failed`; its files are removed.

    With `picture` the worker draws a picture of its own for the video to start from.
    """

    request: Generate
    experts: int
    picture: bool = False


class Cancel(Message, frozen=True):
    """Parent: stop the job before its next denoising step. Answered by `Cancelled`, or `Done` if too late."""

    job: str
    attempt: int


class Shutdown(Message, frozen=True):
    """Parent: finish nothing, release the devices, exit 0."""


class Phase(Message, frozen=True):
    """Child: what is being done now; `job` is None outside a job."""

    name: PhaseName
    job: str | None = None
    attempt: int = 0


class Loaded(Message, frozen=True):
    """Child: weights are on the device and the backend's own dummy run passed."""

    facts: dict[str, Any]


class Step(Message, frozen=True):
    """Child: `step` of `steps` denoising steps are finished (0 = the first one begins).

    `seconds` is the time since the previous report, `memory_bytes` what this device's allocator holds
    (resident set of the process on a CPU), `expert` the transformer that ran the finished step (0 or 1).
    """

    job: str
    attempt: int
    step: int
    steps: int
    seconds: float
    memory_bytes: int
    expert: int | None = None


class Done(Message, frozen=True):
    """Child: the files are complete and on disk. File names are relative to the job's directory."""

    job: str
    attempt: int
    video: str
    thumbnail: str
    bytes: int
    facts: dict[str, Any]


class Ready(Message, frozen=True):
    """Child: the warm-up video was made, decoded and inspected."""

    facts: dict[str, Any]


class Cancelled(Message, frozen=True):
    """Child: the job stopped before step `step`; the engine takes the next one."""

    job: str
    attempt: int
    step: int


class Refused(Message, frozen=True):
    """Child: the request itself is wrong; says nothing about the engine."""

    job: str
    attempt: int
    message: str
    param: str | None = None


class Failed(Message, frozen=True):
    """Child: loading, warm-up or a job failed. `healthy` says whether the worker thinks it can go on.

    `kind` is `engine` (the process is suspect), `frames` (output not finite, constant or black) or
    `storage` (the files could not be written).
    """

    kind: Literal["engine", "frames", "storage"]
    phase: PhaseName
    message: str
    healthy: bool
    job: str | None = None
    attempt: int = 0
    trace: str | None = None


FromParent = Load | WarmUp | Generate | Cancel | Shutdown
FromChild = Phase | Loaded | Ready | Step | Done | Cancelled | Refused | Failed

encode = msgspec.msgpack.Encoder().encode
_parent_decoder = msgspec.msgpack.Decoder(FromParent)
_child_decoder = msgspec.msgpack.Decoder(FromChild)


def decode_from_parent(raw: bytes) -> FromParent:
    """Decode what a worker received; raises msgspec.ValidationError on anything unknown."""
    return _parent_decoder.decode(raw)


def decode_from_child(raw: bytes) -> FromChild:
    """Decode what a supervisor received; raises msgspec.ValidationError on anything unknown."""
    return _child_decoder.decode(raw)
