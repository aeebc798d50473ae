"""What happens to a video, as server-sent events."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, cast

from fastapi import APIRouter, Depends, Header, Request
from sse_starlette import EventSourceResponse, ServerSentEvent

from framekeeper.database.pool import Database
from framekeeper.gateway import metrics
from framekeeper.gateway.auth import ViewerOf
from framekeeper.gateway.changes import Changes
from framekeeper.gateway.openapi import SCHEMAS
from framekeeper.gateway.outlook import Outlook, OutlookOf
from framekeeper.gateway.routes.videos import VideoId
from framekeeper.gateway.schemas import VideoEvent
from framekeeper.gateway.state import DatabaseOf
from framekeeper.jobs.line import Standing
from framekeeper.jobs.video import Video

router = APIRouter(prefix="/v1/videos", tags=["videos"])

#: While it waits, a job's place in line changes without a change of its row.
LINE_SECONDS = 2.0
#: A comment now and then keeps proxies from closing a quiet connection.
PING_SECONDS = 15


async def _changes(request: Request) -> Changes:
    return cast(Changes, request.app.state.changes)


ChangesOf = Annotated[Changes, Depends(_changes)]


@router.get(
    "/{video_id}/events",
    response_class=EventSourceResponse,
    responses={
        200: {
            "content": {"text/event-stream": {"schema": VideoEvent.model_json_schema(ref_template=SCHEMAS)}}
        }
    },
)
async def events(
    video_id: VideoId,
    *,
    caller: ViewerOf,
    outlook: OutlookOf,
    database: DatabaseOf,
    changes: ChangesOf,
    last_event_id: Annotated[str | None, Header()] = None,
) -> EventSourceResponse:
    """Its state at once and after every change: `event: video`, then `event: end` after the final state.

    An event's id is the number of the change. A client that comes back with `Last-Event-ID` gets the present
    state only if it has missed a change.
    """
    await changes.find(video_id, sees=caller.sees)
    stream = _stream(changes, outlook, database, video_id, known=last_event_id)
    return EventSourceResponse(
        stream, ping=PING_SECONDS, headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    )


async def _stream(
    changes: Changes, outlook: Outlook, database: Database, video_id: str, *, known: str | None
) -> AsyncIterator[ServerSentEvent]:
    with metrics.LISTENERS.track_inprogress():
        told: tuple[int, int | None, str | None] | None = None
        async for video in changes.follow(video_id, every=LINE_SECONDS):
            if video is None:
                yield ServerSentEvent(event="end", data="deleted")
                return
            standing = (await outlook.standings(database, [video])).get(video.id)
            waits = standing.waits if standing else None
            reason = waits.sentence(video.created_at) if waits else None
            news = (video.version, standing.place if standing else None, reason)
            has_it = told is None and str(video.version) == known
            if news != told and not has_it:
                yield _event(video, standing)
            told = news
            if video.state.final:
                yield ServerSentEvent(event="end", data=video.state.value)
                return


def _event(video: Video, standing: Standing | None) -> ServerSentEvent:
    return ServerSentEvent(
        event="video", id=str(video.version), data=VideoEvent.of(video, standing).model_dump_json()
    )
