"""The official client, unchanged, against a real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from framekeeper.database.pool import Database
from framekeeper.errors import EngineFailed
from framekeeper.jobs import settle
from framekeeper.jobs.video import Video
from framekeeper.settings import Settings
from gateway.serving import served

pytestmark = [
    pytest.mark.usefixtures("ready_engine"),
    # OpenAI ends its own service; the shape of its API stays.
    pytest.mark.filterwarnings("ignore:The Sora API:DeprecationWarning"),
]


@pytest.fixture
async def client(url: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0) as client:
        yield client


async def claim(database: Database, video_id: str) -> Video:
    held = await settle.claim(database, video_id, engine_id="host/0", run_id="run")
    assert held is not None
    return held


async def complete(database: Database, held: Video, media: Path, content: bytes = b"an mp4") -> None:
    directory = media / held.id
    directory.mkdir(parents=True)
    (directory / f"{held.attempt}.mp4").write_bytes(content)
    (directory / f"{held.attempt}.jpg").write_bytes(b"a jpeg")
    (directory / f"{held.attempt}.sheet.jpg").write_bytes(b"a sheet")
    await settle.complete(
        database, held, video_file=f"{held.attempt}.mp4", thumbnail_file=f"{held.attempt}.jpg",
        size=len(content), facts={},
    )  # fmt: skip


async def test_create_sends_multipart_and_gets_a_queued_video(client: openai.AsyncOpenAI) -> None:
    video = await client.videos.create(prompt="a cat", model="tiny", size="128x64", seconds="2")  # type: ignore[arg-type]
    assert (video.object, video.status, video.model) == ("video", "queued", "tiny")
    assert (video.size, video.seconds, video.progress) == ("128x64", "2.125", 0)
    assert video.prompt == "a cat"
    assert video.error is None
    assert await client.videos.retrieve(video.id) == video


async def test_own_fields_pass_through_extra_body(client: openai.AsyncOpenAI) -> None:
    extra: dict[str, Any] = {"num_frames": 17, "fps": 4, "seed": 7, "guidance_scale": 1.5}
    video = await client.videos.create(prompt="a cat", extra_body=extra)
    assert {name: getattr(video, name) for name in extra} == extra


async def test_create_and_poll_follows_the_job_to_its_file(
    client: openai.AsyncOpenAI, database: Database, settings: Settings
) -> None:
    polling = asyncio.create_task(client.videos.create_and_poll(prompt="a cat", poll_interval_ms=20))
    while not (page := await client.videos.list()).data:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    held = await claim(database, page.data[0].id)
    await settle.report(database, held, phase="denoising", step=3, steps=6)
    assert (await client.videos.retrieve(held.id)).progress == 50
    await complete(database, held, settings.media_directory)
    video = await polling
    assert (video.status, video.progress) == ("completed", 100)
    assert video.completed_at is not None
    assert (await client.videos.download_content(video.id)).content == b"an mp4"
    thumbnail = await client.videos.download_content(video.id, variant="thumbnail")
    assert thumbnail.content == b"a jpeg"
    sheet = await client.videos.download_content(video.id, variant="spritesheet")
    assert sheet.content == b"a sheet"


async def test_failed_job_is_polled_to_its_error(client: openai.AsyncOpenAI, database: Database) -> None:
    video = await client.videos.create(prompt="a cat")
    await settle.fail(database, await claim(database, video.id), EngineFailed("Out of memory."))
    video = await client.videos.poll(video.id)
    assert video.status == "failed"
    assert video.error is not None
    assert (video.error.code, video.error.message) == ("engine_failed", "Out of memory.")


async def test_list_pages_by_itself_in_both_orders(client: openai.AsyncOpenAI) -> None:
    made = [(await client.videos.create(prompt=f"cat {number}")).id for number in range(5)]
    newest = [video.id async for video in client.videos.list(limit=2)]
    oldest = [video.id async for video in client.videos.list(limit=2, order="asc")]
    assert newest == made[::-1]
    assert oldest == made


async def test_everything_can_be_deleted_while_it_is_listed(client: openai.AsyncOpenAI) -> None:
    for number in range(5):
        await client.videos.create(prompt=f"cat {number}")
    async for video in client.videos.list(limit=2):
        await client.videos.delete(video.id)
    assert (await client.videos.list()).data == []


async def test_deleted_video_is_gone_with_its_files(
    client: openai.AsyncOpenAI, database: Database, settings: Settings
) -> None:
    video = await client.videos.create(prompt="a cat")
    await complete(database, await claim(database, video.id), settings.media_directory)
    deleted = await client.videos.delete(video.id)
    assert (deleted.id, deleted.object, deleted.deleted) == (video.id, "video.deleted", True)
    assert not (settings.media_directory / video.id).exists()
    with pytest.raises(openai.NotFoundError):
        await client.videos.retrieve(video.id)


async def test_refusal_arrives_as_bad_request_with_its_field(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await client.videos.create(prompt="a cat", size="100x64")  # type: ignore[arg-type]
    assert caught.value.param == "size"
    assert caught.value.code == "invalid_request"
    assert "multiple of 16" in caught.value.message
    assert caught.value.request_id is not None


async def test_reference_image_is_refused_in_words(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="text only") as caught:
        await client.videos.create(prompt="a cat", input_reference=("cat.png", b"\x89PNG\xff"))
    assert caught.value.param == "input_reference"


async def test_models_are_listed_and_retrieved(client: openai.AsyncOpenAI) -> None:
    assert [model.id async for model in client.models.list()] == ["tiny"]
    assert (await client.models.retrieve("tiny")).owned_by == "framekeeper"


async def test_full_queue_is_waited_for_and_not_hammered(settings: Settings, database: Database) -> None:
    full = settings.model_copy(update={"queue_jobs": 1})
    with served(full) as base:
        async with openai.AsyncOpenAI(base_url=f"{base}/v1", api_key="unused", max_retries=5) as client:
            await claim(database, (await client.videos.create(prompt="runs")).id)
            await client.videos.create(prompt="waits")
            with pytest.raises(openai.RateLimitError) as caught:
                await client.with_options(max_retries=0).videos.create(prompt="one more")
            assert caught.value.code == "queue_full"
            assert float(caught.value.response.headers["retry-after"]) >= 5
            answers: list[int] = []

            async def note(response: httpx.Response) -> None:
                answers.append(response.status_code)

            client._client.event_hooks["response"].append(note)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(client.videos.create(prompt="one more"), 3)
            assert answers == [429]


async def test_repetition_after_a_lost_answer_makes_no_second_job(
    url: str, client: openai.AsyncOpenAI, database: Database
) -> None:
    """The client repeats by itself when the connection breaks; with a key of its user's that is harmless."""
    lost = [True]

    class Losing(httpx.AsyncHTTPTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            response = await super().handle_async_request(request)
            await response.aread()
            if lost.pop() if lost else False:
                raise httpx.ReadError("the answer was lost", request=request)
            return response

    async with openai.AsyncOpenAI(
        base_url=f"{url}/v1",
        api_key="unused",
        max_retries=2,
        http_client=httpx.AsyncClient(transport=Losing()),
    ) as repeating:
        video = await repeating.videos.create(prompt="a cat", extra_headers={"Idempotency-Key": "one"})
    assert lost == []
    assert [each.id async for each in client.videos.list()] == [video.id]
