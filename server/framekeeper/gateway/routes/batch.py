"""Many videos in one request: all are accepted, or none."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from framekeeper.errors import InvalidRequest
from framekeeper.gateway.acceptance import REPLAYED, AcceptanceOf
from framekeeper.gateway.body import read_fields
from framekeeper.gateway.openapi import SCHEMAS
from framekeeper.gateway.schemas import VideoBatch, VideoBatchCreate, VideoObject
from framekeeper.jobs.fields import shown

router = APIRouter(prefix="/v1/videos", tags=["videos"])

MAX_JOBS = 100
BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": VideoBatchCreate.model_json_schema(ref_template=SCHEMAS)}},
    }
}


@router.post("/batch", openapi_extra=BODY)
async def create_batch(request: Request, response: Response, acceptance: AcceptanceOf) -> VideoBatch:
    """Accept up to 100 videos at once. `GET /v1/videos?batch_id=` lists them later."""
    accepted = await acceptance.accept("batch", _requests(await read_fields(request)), batch=True)
    if accepted.replayed:
        response.headers[REPLAYED] = "true"
    return VideoBatch(
        batch_id=str(accepted.videos[0].batch_id),
        data=[VideoObject.of(video, accepted.standing(video)) for video in accepted.videos],
    )


def _requests(fields: dict[str, Any]) -> list[dict[str, Any]]:
    for name in fields:
        if name != "requests":
            raise InvalidRequest(
                f"{shown(name)} is not a field of a batch: put it into each of requests.", param=name
            )
    requests = fields.get("requests")
    if not isinstance(requests, list) or not 1 <= len(requests) <= MAX_JOBS:
        raise InvalidRequest(
            f"requests is not an array of 1 to {MAX_JOBS} objects: "
            'send {"requests": [{"prompt": "a cat"}]}.',
            param="requests",
        )
    for number, each in enumerate(requests):
        if not isinstance(each, dict):
            raise InvalidRequest(
                f"requests[{number}]={shown(each)} is not an object: set its fields.",
                param=f"requests[{number}]",
            )
    return requests
