"""What the API answers, in the shapes of OpenAI's Videos API with our own fields beside them."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from framekeeper.jobs.engines import Engine, EngineState
from framekeeper.jobs.line import Standing
from framekeeper.jobs.video import Priority, Video, VideoState

PRIORITIES: dict[Priority, Literal["low", "normal", "high"]] = {
    Priority.LOW: "low",
    Priority.NORMAL: "normal",
    Priority.HIGH: "high",
}


class ImageReference(BaseModel):
    """A picture within JSON: PNG, JPEG or WebP of at most 10 MiB. An address is refused and never fetched."""

    model_config = ConfigDict(extra="forbid")

    image_url: str = Field(pattern=r"^data:image/(png|jpeg|webp);base64,", description="A data: URL.")


class VideoCreate(BaseModel):
    """The fields of `POST /v1/videos`, for the API's description; admission.py checks them."""

    model_config = ConfigDict(extra="forbid")

    prompt: str = Field(max_length=10_000, description="What the video shows.")
    model: str | None = Field(None, description="A model of GET /v1/models; needed when there are several.")
    negative_prompt: str | None = Field(None, max_length=10_000, description="What it must not show.")
    size: str | None = Field(None, description="WIDTHxHEIGHT in pixels, multiples of 16.")
    seconds: str | None = Field(None, description="Length; the nearest 4k+1 frames are made.")
    num_frames: int | None = Field(None, description="Frames, 4k+1; instead of seconds.")
    fps: int | None = Field(None, ge=1, le=60, description="Frames a second of the file.")
    num_inference_steps: int | None = Field(None, ge=1, description="Denoising steps.")
    guidance_scale: float | None = Field(None, ge=0, le=30, description="Guidance of the high-noise expert.")
    guidance_scale_2: float | None = Field(None, ge=0, le=30, description="Guidance of the low-noise expert.")
    boundary_ratio: float | None = Field(None, ge=0, le=1, description="Where the second expert takes over.")
    flow_shift: float | None = Field(None, gt=0, le=100, description="Shift of the noise schedule.")
    seed: int | None = Field(None, ge=0, lt=2**63, description="Drawn and reported when absent.")
    input_reference: ImageReference | None = Field(
        None, description="The picture that it starts from: a file part of a form, or this object in JSON."
    )
    image_reference: ImageReference | None = Field(None, description="vllm-omni's name of input_reference.")
    priority: Literal["low", "normal", "high"] | None = Field(None, description="Among the jobs that wait.")
    deadline: float | str | None = Field(
        None, description="Seconds from now, or a moment as in RFC 3339; a video not completed by then fails."
    )
    webhook_url: str | None = Field(None, max_length=2000, description="Told when the video is final.")


class VideoForm(VideoCreate):
    """The same as a form of parts, where the picture is a file."""

    input_reference: bytes | None = Field(  # type: ignore[assignment]
        None, description="The picture that it starts from: PNG, JPEG or WebP, at most 10 MiB."
    )


class VideoError(BaseModel):
    """Why a video failed."""

    code: str
    message: str


class VideoObject(BaseModel):
    """One video job."""

    id: str
    object: Literal["video"] = "video"
    model: str
    status: VideoState
    progress: int = Field(description="Percent.")
    created_at: int = Field(description="Unix seconds.")
    completed_at: int | None
    expires_at: int | None = Field(None, description="When its files are removed, or were.")
    size: str
    seconds: str
    prompt: str
    error: VideoError | None
    remixed_from_video_id: None = None
    # Ours.
    phase: str | None = Field(description="What the engine does at the moment.")
    step: int = Field(description="Denoising steps finished.")
    steps: int
    attempt: int = Field(description="How often the job was started.")
    started_at: int | None
    cancel_requested: bool
    negative_prompt: str | None
    num_frames: int
    fps: int
    num_inference_steps: int
    guidance_scale: float
    guidance_scale_2: float | None
    boundary_ratio: float | None
    flow_shift: float | None
    seed: int
    bytes: int | None = Field(description="Size of the finished file.")
    has_input_reference: bool = Field(description="Whether it starts from a picture.")
    priority: Literal["low", "normal", "high"]
    deadline_at: int | None
    batch_id: str | None
    place: int | None = Field(description="Jobs that start before this one; null once it runs.")
    waiting_reason: str | None = Field(
        description="Why it will not start at present: no engine serves its model, or takes its size. Null "
        "otherwise."
    )
    estimated_seconds: float | None = Field(
        description="Until it is done, from measured seconds; null where that is not known, or it is done."
    )

    @classmethod
    def of(cls, video: Video, standing: Standing | None = None) -> VideoObject:
        """From the job's record, and where it stands in the line."""
        request = video.request
        return cls(
            id=video.id,
            model=video.model,
            status=video.state,
            progress=video.progress,
            created_at=int(video.created_at.timestamp()),
            completed_at=_seconds(video.completed_at),
            size=f"{request.width}x{request.height}",
            seconds=f"{request.num_frames / request.fps:.3f}".rstrip("0").rstrip("."),
            prompt=request.prompt,
            error=VideoError(code=video.error_code, message=video.error_message or "")
            if video.error_code
            else None,
            phase=video.phase,
            step=video.step,
            steps=video.steps,
            attempt=video.attempt,
            started_at=_seconds(video.started_at),
            cancel_requested=video.cancel_requested_at is not None,
            negative_prompt=request.negative_prompt,
            num_frames=request.num_frames,
            fps=request.fps,
            num_inference_steps=request.num_inference_steps,
            guidance_scale=request.guidance_scale,
            guidance_scale_2=request.guidance_scale_2,
            boundary_ratio=request.boundary_ratio,
            flow_shift=request.flow_shift,
            seed=request.seed,
            bytes=video.bytes,
            has_input_reference=video.input_file is not None,
            priority=PRIORITIES[video.priority],
            deadline_at=_seconds(video.deadline_at),
            batch_id=video.batch_id,
            expires_at=_seconds(video.expires_at),
            place=standing.place if standing and video.state is VideoState.QUEUED else None,
            waiting_reason=standing.waits.sentence(video.created_at)
            if standing and standing.waits and video.state is VideoState.QUEUED
            else None,
            estimated_seconds=round(standing.seconds, 1)
            if standing and standing.seconds is not None and not video.state.final
            else None,
        )


class VideoEvent(BaseModel):
    """The data of an event `video`: how it is after a change."""

    id: str
    status: VideoState
    progress: int
    phase: str | None
    step: int
    steps: int
    attempt: int
    place: int | None
    waiting_reason: str | None
    estimated_seconds: float | None
    error: VideoError | None

    @classmethod
    def of(cls, video: Video, standing: Standing | None = None) -> VideoEvent:
        """The part of `VideoObject` that changes."""
        return cls.model_validate(VideoObject.of(video, standing).model_dump(include=set(cls.model_fields)))


class VideoBatchCreate(BaseModel):
    """Up to 100 videos, each with the fields of `POST /v1/videos`."""

    requests: list[VideoCreate] = Field(min_length=1, max_length=100)


class VideoBatch(BaseModel):
    """The videos of a batch, in the order of its requests."""

    object: Literal["list"] = "list"
    batch_id: str
    data: list[VideoObject]


class VideoList(BaseModel):
    """A page of videos; `last_id` is `after` of the next page."""

    object: Literal["list"] = "list"
    data: list[VideoObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class VideoDeleted(BaseModel):
    """A deleted video."""

    id: str
    object: Literal["video.deleted"] = "video.deleted"
    deleted: Literal[True] = True


class ErrorBody(BaseModel):
    """What is wrong, and where."""

    message: str
    type: Literal["invalid_request_error", "server_error"]
    param: str | None = Field(description="The field or parameter at fault.")
    code: str = Field(description="A word of a closed set.")


class ErrorAnswer(BaseModel):
    """Every answer that is no success."""

    error: ErrorBody


class EngineObject(BaseModel):
    """An engine as its supervisor last reported it."""

    id: str
    object: Literal["engine"] = "engine"
    host: str
    model: str
    profile: str
    runtime: str
    state: EngineState
    serving: bool = Field(description="Takes jobs, and was heard of lately.")
    phase: str | None
    detail: str | None
    phase_seconds: float = Field(description="Since this state and phase began.")
    seconds: float = Field(description="Since its supervisor registered it.")
    silent_seconds: float = Field(description="Since it was last heard of.")
    restarts: int
    ready_at: int | None
    admits: dict[str, Any]
    defaults: dict[str, Any]
    facts: dict[str, Any] | None

    @classmethod
    def of(cls, engine: Engine, stale_seconds: float) -> EngineObject:
        """From the engine's record; all seconds are by the database's clock."""
        return cls(
            id=engine.id,
            host=engine.host,
            model=engine.model,
            profile=engine.profile,
            runtime=engine.runtime,
            state=engine.state,
            serving=engine.state.serving and engine.alive(stale_seconds),
            phase=engine.phase,
            detail=engine.detail,
            phase_seconds=round(engine.phase_seconds, 1),
            seconds=round((engine.heartbeat_at - engine.started_at).total_seconds() + engine.age_seconds, 1),
            silent_seconds=round(engine.age_seconds, 1),
            restarts=engine.restarts,
            ready_at=_seconds(engine.ready_at),
            admits=engine.admits,
            defaults=engine.defaults,
            facts=engine.facts,
        )


class EngineList(BaseModel):
    """All engines."""

    object: Literal["list"] = "list"
    data: list[EngineObject]


def _seconds(moment: datetime | None) -> int | None:
    return int(moment.timestamp()) if moment else None
