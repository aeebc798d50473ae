"""The page: static files beside this package, whole in memory, known by a hash of their content."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from fastapi import APIRouter, HTTPException, Request, Response

router = APIRouter(include_in_schema=False)

MEDIA_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class Asset:
    """One file of the page."""

    content: bytes
    media_type: str
    etag: str


@cache
def assets() -> dict[str, Asset]:
    """All files of the page, by name."""
    found = {}
    for file in files("framekeeper.gateway").joinpath("page").iterdir():
        if kind := MEDIA_TYPES.get(file.name.rpartition(".")[2]):
            content = file.read_bytes()
            found[file.name] = Asset(content, kind, f'"{hashlib.sha256(content).hexdigest()[:24]}"')
    return found


@router.get("/")
@router.head("/")
async def index(request: Request) -> Response:
    """The page itself."""
    return _answer(request, assets()["index.html"])


@router.get("/page/{name}")
@router.head("/page/{name}")
async def asset(request: Request, name: str) -> Response:
    """A file that the page names. The name is looked up, and never becomes a path."""
    found = assets().get(name)
    if found is None:
        raise HTTPException(404)
    return _answer(request, found)


def _answer(request: Request, found: Asset) -> Response:
    # Asked for anew each time, and answered by 304: modules of two versions never mix for long.
    headers = {"ETag": found.etag, "Cache-Control": "no-cache"}
    known = [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]
    if found.etag in known:
        return Response(status_code=304, headers=headers)
    return Response(found.content, media_type=found.media_type, headers=headers)
