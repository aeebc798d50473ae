"""`/docs`: the API's description for people."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from framekeeper.gateway import reference

router = APIRouter(include_in_schema=False)


@router.get("/docs")
async def docs(request: Request) -> Response:
    """The description as a page, which names no other origin."""
    base = str(request.base_url).rstrip("/")
    return Response(reference.page(request.app.openapi(), base), media_type="text/html; charset=utf-8")
