"""One request from prompt to file, for clients that do not want to poll. vllm-omni's server has it, too."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

import structlog
from fastapi import APIRouter, Request, Response
from starlette.requests import ClientDisconnect

from framekeeper.errors import StillBeingMade, VideoAlreadyFinished, VideoNotFound
from framekeeper.gateway import content, metrics
from framekeeper.gateway.acceptance import AcceptanceOf
from framekeeper.gateway.body import read_fields
from framekeeper.gateway.changes import Changes
from framekeeper.gateway.errors import answer, error_response
from framekeeper.gateway.observe import be_patient
from framekeeper.gateway.routes.events import ChangesOf
from framekeeper.gateway.routes.videos import BODY
from framekeeper.gateway.state import DatabaseOf, SettingsOf
from framekeeper.jobs import cancel
from framekeeper.jobs.video import Video, VideoState

router = APIRouter(prefix="/v1/videos", tags=["videos"])

#: How often it is looked whether the client is still there.
GONE_SECONDS = 0.5
VIDEO: dict[int | str, dict[str, Any]] = {
    200: {"content": {"video/mp4": {"schema": {"type": "string", "format": "binary"}}}}
}


@router.post("/sync", openapi_extra=BODY, response_class=Response, responses=VIDEO)
async def create_and_wait(
    request: Request, acceptance: AcceptanceOf, changes: ChangesOf, database: DatabaseOf, settings: SettingsOf
) -> Response:
    """Make a video and answer with the MP4. A client that goes away cancels it.

    After FRAMEKEEPER_SYNC_SECONDS the answer is 504, and the video goes on: its id is in X-Video-Id.
    """
    begin = time.monotonic()
    accepted = await acceptance.accept("sync", [await read_fields(request)])
    (video,) = accepted.videos
    structlog.contextvars.bind_contextvars(video_id=video.id)
    be_patient(request.scope)
    headers = {"X-Video-Id": video.id}
    try:
        async with asyncio.timeout(settings.sync_seconds):
            final = await _final(request, changes, video.id)
    except TimeoutError:
        return answer(StillBeingMade(retry_after=5), headers)
    if final is None:
        with contextlib.suppress(VideoAlreadyFinished, VideoNotFound):
            _, ended = await cancel.stop(database, video.id)
            if ended:
                metrics.cancelled_in_line()
        raise ClientDisconnect
    headers["X-Seconds"] = f"{time.monotonic() - begin:.3f}"
    if final.state is not VideoState.COMPLETED:
        return _failure(final, headers)
    path = await asyncio.to_thread(content.locate, settings.media_directory, final, "video")
    response = content.file_response(request, path, final, "video")
    response.headers.update(headers)
    return response


async def _final(request: Request, changes: Changes, video_id: str) -> Video | None:
    """The job once it is final; None when the client has gone away. Raises VideoNotFound."""
    async for video in changes.follow(video_id, every=GONE_SECONDS):
        if video is None:
            raise VideoNotFound(f"The video {video_id} was deleted while it was waited for.")
        if video.state.final:
            return video
        if await request.is_disconnected():
            return None
    return None


def _failure(video: Video, headers: dict[str, str]) -> Response:
    """A job's failure as an answer of its own: here nobody asks for the job."""
    if video.state is VideoState.CANCELLED:
        return error_response(
            409, "The video was cancelled.", type="invalid_request_error", code="cancelled", headers=headers
        )
    return error_response(
        500,
        video.error_message or "",
        type="server_error",
        code=video.error_code or "engine_failed",
        # The official client would submit the job again.
        headers=headers | {"X-Should-Retry": "false"},
    )
