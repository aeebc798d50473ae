"""Videos: made, listed, fetched, cancelled, deleted."""

from __future__ import annotations

import asyncio
import re
from typing import Annotated, Any, Literal

import structlog
from fastapi import APIRouter, Depends, Query, Request, Response

from framekeeper.database.pool import Database
from framekeeper.errors import InvalidRequest, VideoNotFound
from framekeeper.gateway import content, metrics
from framekeeper.gateway.acceptance import REPLAYED, AcceptanceOf
from framekeeper.gateway.auth import ReaderOf, SubmitterOf, ViewerOf
from framekeeper.gateway.body import read_fields
from framekeeper.gateway.openapi import SCHEMAS
from framekeeper.gateway.outlook import Outlook, OutlookOf
from framekeeper.gateway.schemas import VideoCreate, VideoDeleted, VideoForm, VideoList, VideoObject
from framekeeper.gateway.state import DatabaseOf, SettingsOf
from framekeeper.jobs import cancel, lookup
from framekeeper.jobs.fields import shown
from framekeeper.jobs.line import Standing
from framekeeper.jobs.video import Video, VideoState

router = APIRouter(prefix="/v1/videos", tags=["videos"])

VIDEO_ID = re.compile(r"video_[0-9a-f]{32}", re.ASCII)
_FIELDS = {"schema": VideoCreate.model_json_schema(ref_template=SCHEMAS)}
_FORM = {"schema": VideoForm.model_json_schema(ref_template=SCHEMAS)}
BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": _FIELDS,
            "multipart/form-data": _FORM,
            "application/x-www-form-urlencoded": _FIELDS,
        },
    }
}

_BYTES = {"schema": {"type": "string", "format": "binary"}}
FILE: dict[int | str, dict[str, Any]] = {
    200: {"description": "The file.", "content": {"video/mp4": _BYTES, "image/jpeg": _BYTES}},
    206: {"description": "A part of the file.", "content": {"video/mp4": _BYTES, "image/jpeg": _BYTES}},
    304: {"description": "The client has it: If-None-Match."},
}


async def _known_form(video_id: str) -> str:
    # Nothing else is asked of the database or becomes part of a path.
    if not VIDEO_ID.fullmatch(video_id):
        raise VideoNotFound(f"There is no video with the id {shown(video_id)}.", param="video_id")
    structlog.contextvars.bind_contextvars(video_id=video_id)
    return video_id


VideoId = Annotated[str, Depends(_known_form)]


@router.post("", openapi_extra=BODY)
async def create(request: Request, response: Response, acceptance: AcceptanceOf) -> VideoObject:
    """Accept a video. The answer comes at once, with status `queued`."""
    accepted = await acceptance.accept("video", [await read_fields(request)])
    (video,) = accepted.videos
    structlog.contextvars.bind_contextvars(video_id=video.id)
    if accepted.replayed:
        response.headers[REPLAYED] = "true"
    return VideoObject.of(video, accepted.standing(video))


@router.get("")
async def list_videos(
    *,
    caller: ReaderOf,
    outlook: OutlookOf,
    database: DatabaseOf,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    after: Annotated[str | None, Query(json_schema_extra={"pattern": "^video_[0-9a-f]{32}$"})] = None,
    order: Literal["asc", "desc"] = "desc",
    status: VideoState | None = None,
    batch_id: Annotated[str | None, Query(pattern="^batch_[0-9a-f]{32}$")] = None,
) -> VideoList:
    """Videos by the time they were accepted; `after` is the last id of the page before."""
    if after is not None and not VIDEO_ID.fullmatch(after):
        raise InvalidRequest(f"after={shown(after)} is not the id of a video.", param="after")
    only = lookup.Only(sees=caller.sees, state=status, batch_id=batch_id)
    videos, more = await lookup.page(database, limit=limit, after=after, order=order, only=only)
    standings = await outlook.standings(database, videos)
    return VideoList(
        data=[VideoObject.of(video, standings.get(video.id)) for video in videos],
        first_id=videos[0].id if videos else None,
        last_id=videos[-1].id if videos else None,
        has_more=more,
    )


@router.get("/{video_id}")
async def retrieve(
    video_id: VideoId, caller: ViewerOf, outlook: OutlookOf, database: DatabaseOf
) -> VideoObject:
    """How a video is. A failed one is answered with 200, `status: failed` and `error`."""
    video = await lookup.find(database, video_id, sees=caller.sees)
    return VideoObject.of(video, await _standing(outlook, database, video))


async def _standing(outlook: Outlook, database: Database, video: Video) -> Standing | None:
    return (await outlook.standings(database, [video])).get(video.id)


@router.head("/{video_id}/content", include_in_schema=False)
@router.get("/{video_id}/content", response_class=Response, responses=FILE)
async def get_content(
    request: Request,
    video_id: VideoId,
    *,
    caller: ReaderOf,
    database: DatabaseOf,
    settings: SettingsOf,
    variant: content.Variant = "video",
) -> Response:
    """The finished MP4, its thumbnail, or a sheet of up to 25 of its frames; ranges are supported."""
    video = await lookup.find(database, video_id, sees=caller.sees)
    path = await asyncio.to_thread(content.locate, settings.media_directory, video, variant)
    return content.file_response(request, path, video, variant)


@router.delete("/{video_id}")
async def delete(
    video_id: VideoId, caller: SubmitterOf, database: DatabaseOf, settings: SettingsOf
) -> VideoDeleted:
    """Forget a video and its files; one that is being made is stopped first."""
    before = await cancel.delete(database, video_id, sees=caller.sees)
    if before.state is VideoState.QUEUED:
        metrics.cancelled_in_line()
    if before.state is not VideoState.IN_PROGRESS:
        await asyncio.to_thread(content.remove_files, settings.media_directory, video_id)
    return VideoDeleted(id=video_id)


@router.post("/{video_id}/cancel")
async def request_cancel(video_id: VideoId, caller: SubmitterOf, database: DatabaseOf) -> VideoObject:
    """Stop a video: a queued one at once, one that is being made before its next denoising step."""
    video, ended = await cancel.stop(database, video_id, sees=caller.sees)
    if ended:
        metrics.cancelled_in_line()
    return VideoObject.of(video)
