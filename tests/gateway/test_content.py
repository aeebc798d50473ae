"""The finished files over HTTP: whole, in parts, on condition, and never from elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import Request

from framekeeper.database.pool import Database
from framekeeper.errors import EngineFailed
from framekeeper.gateway import content
from framekeeper.jobs import cancel, lookup, settle
from framekeeper.jobs.submit import submit
from framekeeper.settings import Settings
from gateway.test_openai_client import claim, complete
from jobs.records import request

CONTENT = bytes(range(256)) * 1024
SIZE = len(CONTENT)


@pytest.fixture
async def video_id(database: Database, settings: Settings) -> str:
    """A completed video of known content."""
    video = await submit(database, "tiny", request())
    await complete(database, await claim(database, video.id), settings.media_directory, CONTENT)
    return video.id


@pytest.fixture(scope="module")
def shared_id(shared_settings: Settings) -> str:
    """As `video_id`, on the server that tests share."""

    async def make() -> str:
        database = Database(shared_settings.database_url, size=1)
        await database.open()
        video = await submit(database, "tiny", request())
        await complete(database, await claim(database, video.id), shared_settings.media_directory, CONTENT)
        await database.close()
        return video.id

    return asyncio.run(make())


@pytest.fixture
def path(shared_id: str) -> str:
    return f"/v1/videos/{shared_id}/content"


def test_whole_file_has_its_headers(shared_http: httpx.Client, path: str, shared_id: str) -> None:
    answer = shared_http.get(path)
    assert answer.status_code == 200
    assert answer.content == CONTENT
    assert answer.headers["content-type"] == "video/mp4"
    assert answer.headers["content-length"] == str(SIZE)
    assert answer.headers["accept-ranges"] == "bytes"
    assert answer.headers["content-disposition"] == f'inline; filename="{shared_id}.mp4"'
    assert answer.headers["etag"].startswith('"')


def test_thumbnail_is_a_jpeg_with_a_tag_of_its_own(shared_http: httpx.Client, path: str) -> None:
    answer = shared_http.get(path, params={"variant": "thumbnail"})
    assert (answer.content, answer.headers["content-type"]) == (b"a jpeg", "image/jpeg")
    assert answer.headers["etag"] != shared_http.get(path).headers["etag"]


def test_sheet_of_frames_is_a_jpeg_of_its_own(shared_http: httpx.Client, path: str) -> None:
    answer = shared_http.get(path, params={"variant": "spritesheet"})
    assert (answer.content, answer.headers["content-type"]) == (b"a sheet", "image/jpeg")
    assert answer.headers["etag"] != shared_http.get(path, params={"variant": "thumbnail"}).headers["etag"]


def test_unknown_variant_is_refused(shared_http: httpx.Client, path: str) -> None:
    answer = shared_http.get(path, params={"variant": "gif"})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "variant"


def test_head_has_the_headers_alone(shared_http: httpx.Client, path: str) -> None:
    whole = shared_http.get(path)
    head = shared_http.head(path)
    assert (head.status_code, head.content) == (200, b"")
    assert {**head.headers, "date": 0, "x-request-id": 0} == {**whole.headers, "date": 0, "x-request-id": 0}


@pytest.mark.parametrize(
    ("value", "first", "last"),
    [
        ("bytes=0-0", 0, 0), ("bytes=0-99", 0, 99), ("bytes=100-", 100, SIZE - 1), ("Bytes= 1 - 2", 1, 2),
        ("bytes=-5", SIZE - 5, SIZE - 1), (f"bytes=5-{SIZE * 9}", 5, SIZE - 1), (f"bytes=0-1,{SIZE}-", 0, 1),
        (f"bytes=-{SIZE * 9}", 0, SIZE - 1),
    ],
)  # fmt: skip
def test_range_gives_that_part(
    shared_http: httpx.Client, path: str, value: str, first: int, last: int
) -> None:
    answer = shared_http.get(path, headers={"range": value})
    assert answer.status_code == 206
    assert answer.headers["content-range"] == f"bytes {first}-{last}/{SIZE}"
    assert answer.content == CONTENT[first : last + 1]


def test_several_ranges_come_as_parts(shared_http: httpx.Client, path: str) -> None:
    answer = shared_http.get(path, headers={"range": "bytes=0-1,10-11"})
    assert answer.status_code == 206
    assert answer.headers["content-type"].startswith("multipart/byteranges")
    assert b"Content-Range: bytes 10-11/" in answer.content


@pytest.mark.parametrize("value", [f"bytes={SIZE}-", f"bytes={SIZE + 1}-{SIZE + 2}", "bytes=-0"])
def test_range_outside_the_file_is_416_with_its_size(
    shared_http: httpx.Client, path: str, value: str
) -> None:
    answer = shared_http.get(path, headers={"range": value})
    assert answer.status_code == 416
    assert answer.headers["content-range"] == f"bytes */{SIZE}"
    assert answer.json()["error"]["code"] == "range_not_satisfiable"


@pytest.mark.parametrize(
    "value",
    ["bytes=5-1", "bytes=a-b", "bytes", "bytes=", "line=1-2", "bytes=-", "bytes=1,x", "bytes=" + "0-0," * 99],
)  # fmt: skip
def test_malformed_range_counts_as_absent(shared_http: httpx.Client, path: str, value: str) -> None:
    answer = shared_http.get(path, headers={"range": value})
    assert (answer.status_code, len(answer.content)) == (200, SIZE)


def test_range_on_condition_needs_the_same_file(shared_http: httpx.Client, path: str) -> None:
    tag = shared_http.get(path).headers["etag"]
    part = {"range": "bytes=0-9"}
    assert shared_http.get(path, headers={**part, "if-range": tag}).status_code == 206
    assert shared_http.get(path, headers={**part, "if-range": '"other"'}).status_code == 200
    outside = {"range": f"bytes={SIZE}-", "if-range": '"other"'}
    assert shared_http.get(path, headers=outside).status_code == 200


def test_known_file_is_not_sent_again(shared_http: httpx.Client, path: str) -> None:
    tag = shared_http.get(path).headers["etag"]
    for known in (tag, f"W/{tag}", f'"other", {tag}', "*"):
        answer = shared_http.get(path, headers={"if-none-match": known})
        assert (answer.status_code, answer.content) == (304, b"")
    assert shared_http.get(path, headers={"if-none-match": '"other"'}).status_code == 200


async def test_unfinished_and_ended_videos_say_why_there_is_no_content(
    web: httpx.AsyncClient, database: Database
) -> None:
    async def refusal(video_id: str) -> str:
        answer = await web.get(f"/v1/videos/{video_id}/content")
        assert answer.status_code == 409
        assert answer.json()["error"]["code"] == "video_not_finished"
        return str(answer.json()["error"]["message"])

    video = await submit(database, "tiny", request())
    assert "is queued (0 %), so it has no content yet." in await refusal(video.id)
    held = await claim(database, video.id)
    await settle.report(database, held, phase="denoising", step=2, steps=6)
    assert "is in_progress (33 %)" in await refusal(video.id)
    await settle.fail(database, held, EngineFailed("Out of memory."))
    assert "failed (engine_failed): Out of memory." in await refusal(video.id)
    other = await submit(database, "tiny", request())
    await cancel.request_cancel(database, other.id)
    assert "was cancelled." in await refusal(other.id)


def test_lost_file_is_410(http: httpx.Client, video_id: str, settings: Settings) -> None:
    path = f"/v1/videos/{video_id}/content"
    (settings.media_directory / video_id / "1.mp4").unlink()
    answer = http.get(path)
    assert answer.status_code == 410
    assert answer.json()["error"]["code"] == "content_lost"
    assert http.head(path).status_code == 410
    assert http.get(path, params={"variant": "thumbnail"}).status_code == 200


@pytest.fixture
def secret(tmp_path: Path) -> Iterator[Path]:
    secret = tmp_path / "secret.mp4"
    secret.write_bytes(b"secret")
    yield secret
    assert secret.exists()


@pytest.mark.parametrize(
    "name", ["../../../secret.mp4", "link.mp4", "/etc/hostname", ".", "x/../../other/1.mp4"]
)
async def test_no_file_outside_the_videos_directory_is_served(
    web: httpx.AsyncClient, database: Database, settings: Settings, video_id: str, name: str, secret: Path
) -> None:
    directory = settings.media_directory / video_id
    (directory / "link.mp4").symlink_to(secret)
    (settings.media_directory / "other").mkdir()
    (settings.media_directory / "other" / "1.mp4").write_bytes(b"another's")
    async with database.transaction() as connection:
        await connection.execute("UPDATE videos SET video_file = %(name)s", {"name": name})
    assert (await web.get(f"/v1/videos/{video_id}/content")).status_code == 410


def test_delete_does_not_follow_a_link(
    http: httpx.Client, video_id: str, settings: Settings, secret: Path
) -> None:
    directory = settings.media_directory / video_id
    directory.rename(secret.parent / "elsewhere")
    directory.symlink_to(secret.parent / "elsewhere")
    assert http.delete(f"/v1/videos/{video_id}").json()["deleted"] is True
    assert (secret.parent / "elsewhere" / "1.mp4").exists()


async def test_deleting_a_running_video_leaves_its_files_to_the_engine(
    web: httpx.AsyncClient, database: Database, settings: Settings
) -> None:
    video = await submit(database, "tiny", request())
    held = await claim(database, video.id)
    part = settings.media_directory / video.id / "1.part"
    part.parent.mkdir(parents=True)
    part.touch()
    assert (await web.delete(f"/v1/videos/{video.id}")).json()["deleted"] is True
    assert part.exists()
    assert (await web.get(f"/v1/videos/{video.id}")).status_code == 404
    await settle.cancelled(database, held)
    assert (await web.get("/v1/videos")).json()["data"] == []


async def test_one_of_two_deletes_wins(web: httpx.AsyncClient, video_id: str) -> None:
    answers = await asyncio.gather(*(web.delete(f"/v1/videos/{video_id}") for _ in range(2)))
    assert sorted(answer.status_code for answer in answers) == [200, 404]


async def test_deleting_does_not_cut_a_download_that_has_begun(
    video_id: str, database: Database, settings: Settings
) -> None:
    video = await lookup.find(database, video_id)
    path = content.locate(settings.media_directory, video, "video")
    scope = {"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": []}
    response = content.file_response(Request(scope), path, video, "video")
    content.remove_files(settings.media_directory, video_id)
    assert not path.exists()
    received = bytearray()

    async def send(message: Any) -> None:
        received.extend(message.get("body", b""))

    await response(scope, asyncio.Event().wait, send)  # type: ignore[arg-type]
    assert bytes(received) == CONTENT
