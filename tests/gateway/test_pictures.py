"""Pictures sent to a real server: taken and stored, or refused in words; nothing is ever fetched."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import logging
import socket
import struct
import zlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from PIL import Image

from framekeeper.database.pool import Database
from framekeeper.engine.tidy import keep_of, tidy
from framekeeper.gateway import body
from framekeeper.jobs import engines, settle
from framekeeper.jobs.engines import EngineState
from framekeeper.media.store import MediaStore
from framekeeper.settings import Settings
from gateway.conftest import register, report
from gateway.serving import served
from jobs.records import ADMITS, DEFAULTS

pytestmark = [
    pytest.mark.usefixtures("engines_of_both_kinds"),
    pytest.mark.filterwarnings("ignore:The Sora API:DeprecationWarning"),
]


def png(size: tuple[int, int] = (64, 64), colour: str = "red", kind: str = "PNG") -> bytes:
    target = io.BytesIO()
    Image.new("RGB", size, colour).save(target, kind)
    return target.getvalue()


def bomb(width: int, height: int) -> bytes:
    """A small PNG that says it is as large as that."""
    head = b"IHDR" + struct.pack(">II", width, height) + png()[24:29]
    return png()[:12] + head + struct.pack(">I", zlib.crc32(head)) + png()[33:]


def data_url(data: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


async def enter(database: Database, name: str, model: str, image: str) -> None:
    await engines.register(
        database, engine_id=name, host="host", run_id="run", model=model, profile="cpu-tiny", runtime="cpu",
        admits=ADMITS | {"image": image}, defaults=DEFAULTS,
    )  # fmt: skip
    await report(database, EngineState.READY, name)


@pytest.fixture
async def engines_of_both_kinds(database: Database) -> None:
    await register(database, "host/0", "text")
    await report(database, EngineState.READY, "host/0")
    await enter(database, "host/1", "both", "optional")
    await enter(database, "host/2", "picture", "required")


@pytest.fixture
async def client(url: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0) as client:
        yield client


@pytest.fixture
def inputs(settings: Settings) -> Path:
    return settings.media_directory / "inputs"


@pytest.fixture
def listening() -> Iterator[tuple[str, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.3)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/cat.png", listener


def names(inputs: Path) -> list[str]:
    return sorted(path.name for path in inputs.iterdir()) if inputs.exists() else []


def stored(inputs: Path, video_id: str) -> Image.Image:
    image = Image.open(inputs / f"{video_id}.png")
    image.load()
    return image


def send(http: httpx.Client, data: bytes, model: str = "both", name: str = "cat.png", **fields: str) -> Any:
    parts: dict[str, Any] = {name: (None, value) for name, value in fields.items()}
    parts |= {"prompt": (None, "a cat"), "model": (None, model), "input_reference": (name, data)}
    return http.post("/v1/videos", files=parts)


def refusal(answer: httpx.Response, status: int = 400) -> str:
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert error["param"] in ("input_reference", "image_reference")
    return str(error["message"])


async def test_official_client_sends_a_file(client: openai.AsyncOpenAI, inputs: Path) -> None:
    made = await client.videos.create(
        prompt="a cat", model="picture", input_reference=("my cat.jpg", png((64, 32), kind="JPEG"))
    )
    image = stored(inputs, made.id)
    assert (image.format, image.mode, image.size) == ("PNG", "RGB", (64, 32))
    assert made.model_extra is not None
    assert made.model_extra["has_input_reference"] is True
    assert made.size == "96x48"
    assert names(inputs) == [f"{made.id}.png"]


def test_data_url_in_json_and_in_a_form_and_upstreams_name(http: httpx.Client, inputs: Path) -> None:
    reference = {"image_url": data_url(png((16, 16), "blue"))}
    common = {"prompt": "a cat", "model": "both"}
    form = json.dumps(reference)
    answers = [
        http.post("/v1/videos", json=common | {"input_reference": reference}),
        http.post("/v1/videos", json=common | {"image_reference": reference}),
        http.post("/v1/videos", data=common | {"image_reference": form}),
        http.post("/v1/videos", data=common | {"input_reference[image_url]": reference["image_url"]}),
        http.post("/v1/videos/batch", json={"requests": [common | {"input_reference": reference}, common]}),
    ]
    assert [answer.status_code for answer in answers] == [200] * 5
    made = [answer.json() for answer in answers[:4]] + answers[4].json()["data"]
    assert [each["has_input_reference"] for each in made] == [True] * 5 + [False]
    assert names(inputs) == sorted(f"{each['id']}.png" for each in made[:5])
    assert stored(inputs, made[0]["id"]).getpixel((3, 3)) == (0, 0, 255)


def test_size_is_that_of_the_request_or_follows_the_picture(http: httpx.Client, inputs: Path) -> None:
    asked = send(http, png((128, 64)), size="128x128").json()
    assert (asked["size"], stored(inputs, asked["id"]).size) == ("128x128", (128, 64))
    assert send(http, png((64, 128))).json()["size"] == "48x96"
    assert send(http, png((64, 64))).json()["size"] == "64x64"
    large = send(http, png((2000, 1000))).json()
    assert (large["size"], stored(inputs, large["id"]).size) == ("96x48", (96, 48))


def test_each_model_says_whether_it_takes_one(http: httpx.Client, inputs: Path) -> None:
    models = {each["id"]: each for each in http.get("/v1/models").json()["data"]}
    assert {name: each["input_reference"] for name, each in models.items()} == {
        "text": "none", "both": "optional", "picture": "required",
    }  # fmt: skip
    assert [models[name]["image_input"] for name in ("text", "both", "picture")] == [False, True, True]
    assert refusal(send(http, png(), model="text")) == (
        "input_reference: text makes videos from text only; leave it out, or use both or picture."
    )
    missing = http.post("/v1/videos", json={"prompt": "a cat", "model": "picture"})
    assert "input_reference is missing: picture makes videos from a picture" in refusal(missing)
    assert http.post("/v1/videos", json={"prompt": "a cat", "model": "both"}).status_code == 200
    assert names(inputs) == []


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"file_id": "file-1"}, "has a file_id, and files are not kept here"),
        ({"image_url": "file:///etc/passwd"}, "addresses are not fetched"),
        ({"image_url": "https://example.org/a.png"}, "addresses are not fetched"),
        ({"image_url": 5}, "is 5"),
        ({"image_url": "x", "file_id": "y"}, "not an object with image_url alone"),
        ({}, "not an object with image_url alone"),
        ([{"image_url": "x"}], "a video starts from one picture"),
        ("cat.png", "is text, not a picture"),
        ("{", "not the JSON of an object"),
        (7, "is 7"),
        ({"image_url": "data:image/png,%89PNG"}, "without ;base64"),
        ({"image_url": "data:image/png;base64,???"}, "not base64"),
        ({"image_url": "data:image/png;base64,"}, "an empty file"),
        ({"image_url": data_url(b"<svg/>")}, "text with markup"),
        ({"image_url": data_url(b"GIF89a")}, "is a GIF"),
    ],
)
def test_other_references_are_refused_by_name(
    http: httpx.Client, inputs: Path, value: Any, words: str
) -> None:
    for name in ("input_reference", "image_reference"):
        answer = http.post("/v1/videos", json={"prompt": "a cat", "model": "both", name: value})
        message = refusal(answer)
        assert answer.json()["error"]["param"] == name
        assert message.startswith(name)
        assert words in message
    assert names(inputs) == []


def test_loopback_address_is_refused_and_never_asked(
    http: httpx.Client, listening: tuple[str, socket.socket]
) -> None:
    address, listener = listening
    for name in ("input_reference", "image_reference"):
        body = {"prompt": "a cat", "model": "both", name: {"image_url": address}}
        assert "addresses are not fetched" in refusal(http.post("/v1/videos", json=body))
        form = {"prompt": "a cat", "model": "both", name: f'{{"image_url": "{address}"}}'}
        assert "addresses are not fetched" in refusal(http.post("/v1/videos", data=form))
    with pytest.raises(TimeoutError):
        listener.accept()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "an empty file"),
        (png()[:40], "kind that is read here"),
        (png((300, 300), kind="JPEG")[:-200], "cannot be decoded"),
        (b"<!doctype html><script>alert(1)</script>", "text with markup"),
        (b"GIF89a" + b"\0" * 100, "is a GIF"),
        (bomb(100_000, 100_000), "most are 40 megapixels"),
        (png() + b"\0" * 10 * 1024 * 1024, "most is 10485760 (10 MiB)"),
    ],
)
def test_file_that_is_no_fit_picture_is_refused_and_leaves_nothing(
    http: httpx.Client, inputs: Path, data: bytes, words: str
) -> None:
    message = refusal(send(http, data))
    assert message.startswith("input_reference")
    assert words in message
    assert names(inputs) == []
    assert http.get("/v1/videos").json()["data"] == []


def test_bodies_have_their_own_bounds_with_and_without_a_picture(http: httpx.Client) -> None:
    padded = png() + bytes(10 * 1024 * 1024 - len(png()))
    assert send(http, padded).status_code == 200
    answer = http.post(
        "/v1/videos",
        json={"prompt": "a cat", "model": "both", "input_reference": {"image_url": data_url(padded)}},
    )
    assert answer.status_code == 200, answer.text
    for too_large in (png() + bytes(15 * 1024 * 1024), png() + bytes(40 * 1024 * 1024)):
        try:
            assert send(http, too_large).status_code == 413
        except httpx.WriteError:
            assert len(too_large) > 24 * 1024 * 1024
    assert http.post("/v1/videos", json={"prompt": "a" * 2_000_000}).status_code == 413
    assert http.post("/v1/videos", files={"prompt": (None, "a" * 2_000_000)}).status_code == 413


def test_two_pictures_two_files_and_a_file_for_the_prompt_are_refused(http: httpx.Client) -> None:
    file, reference = ("a.png", png()), {"image_url": data_url(png())}
    both = {"prompt": "a cat", "model": "both", "input_reference": reference, "image_reference": reference}
    assert "more than one picture" in refusal(http.post("/v1/videos", json=both))
    parts = [("prompt", (None, "a cat")), ("input_reference", file), ("input_reference", file)]
    assert "given more than once" in refusal(http.post("/v1/videos", files=parts))
    answer = http.post("/v1/videos", files=[("model", (None, "both")), ("prompt", file)])
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "prompt")


def test_damaged_picture_of_a_batch_is_told_with_its_place_and_refuses_all(
    http: httpx.Client, inputs: Path
) -> None:
    whole, cut = png((300, 300), kind="JPEG"), png((300, 300), kind="JPEG")[:-200]
    requests = [
        {"prompt": "a cat", "model": "both", "input_reference": {"image_url": data_url(each, "image/jpeg")}}
        for each in (whole, cut)
    ]
    answer = http.post("/v1/videos/batch", json={"requests": requests})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "requests[1].input_reference")
    assert answer.json()["error"]["message"].startswith("requests[1]: input_reference cannot be decoded")
    assert names(inputs) == []


def test_file_part_that_was_cut_in_half_makes_no_job(http: httpx.Client, inputs: Path) -> None:
    file = ("a.png", png((256, 256)))
    parts: dict[str, Any] = {"prompt": (None, "a cat"), "model": (None, "both"), "input_reference": file}
    request = http.build_request("POST", "/v1/videos", files=parts)
    body = request.read()
    half = body[: len(body) * 3 // 4]
    headers = {"content-type": request.headers["content-type"]}
    answer = http.post("/v1/videos", content=half, headers=headers)
    assert answer.status_code == 400
    assert "cut off" in answer.json()["error"]["message"]
    assert names(inputs) == []


def test_same_key_means_the_same_picture(http: httpx.Client, inputs: Path) -> None:
    headers = {"Idempotency-Key": "one"}

    def post(data: bytes, name: str) -> httpx.Response:
        parts = {"prompt": (None, "a cat"), "model": (None, "both"), "input_reference": (name, data)}
        return http.post("/v1/videos", files=parts, headers=headers)

    first = post(png(), "a.png")
    assert post(png(), "b.png").json()["id"] == first.json()["id"]
    assert post(png(colour="blue"), "a.png").status_code == 409
    assert names(inputs) == [f"{first.json()['id']}.png"]


def test_full_disk_refuses_a_picture_before_it_is_written(settings: Settings, inputs: Path) -> None:
    with served(settings.model_copy(update={"min_free_bytes": 10**15})) as base:
        answer = httpx.post(
            f"{base}/v1/videos",
            files={"prompt": (None, "a"), "model": (None, "both"), "input_reference": ("a.png", png())},
        )
    assert answer.status_code == 507
    assert names(inputs) == []


def test_client_file_name_reaches_neither_path_nor_log(
    http: httpx.Client, inputs: Path, log_lines: io.StringIO
) -> None:
    made = send(http, png(), name="../../etc/marked-name.png").json()
    refusal(send(http, b"nothing", name="../marked-name.png"))
    logging.getLogger().handlers[0].flush()
    assert names(inputs) == [f"{made['id']}.png"]
    assert "marked-name" not in log_lines.getvalue()


async def test_picture_goes_with_its_job(
    web: httpx.AsyncClient, database: Database, settings: Settings, inputs: Path
) -> None:
    async def make() -> str:
        parts = {"prompt": (None, "a"), "model": (None, "both"), "input_reference": ("a.png", png())}
        return str((await web.post("/v1/videos", files=parts)).json()["id"])

    deleted, cancelled, waiting, running = [await make() for _ in range(4)]
    assert (await web.delete(f"/v1/videos/{deleted}")).status_code == 200
    assert f"{deleted}.png" not in names(inputs)
    await web.post(f"/v1/videos/{cancelled}/cancel")
    assert await settle.claim(database, running, engine_id="host/1", run_id="run") is not None
    (inputs / "notes.txt").write_text("of somebody else")
    (inputs / "video_0.png").write_bytes(b"young")
    await tidy(database, MediaStore(settings.media_directory), keep_of(settings))
    assert names(inputs) == sorted(["notes.txt", "video_0.png", f"{waiting}.png", f"{running}.png"])


async def test_picture_of_a_job_that_was_rolled_back_is_taken_away(
    web: httpx.AsyncClient, database: Database, inputs: Path
) -> None:
    await database.execute(
        """
        CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN RAISE EXCEPTION 'not today'; END $$
        """
    )
    # It is raised when the job's row is written and its picture has the job's name.
    await database.execute(
        "CREATE TRIGGER refused BEFORE UPDATE ON idempotency_keys FOR EACH ROW EXECUTE FUNCTION refuse()"
    )
    parts = {"prompt": (None, "a"), "model": (None, "both"), "input_reference": ("a.png", png())}
    answer = await web.post("/v1/videos", files=parts, headers={"Idempotency-Key": "one"})
    assert answer.status_code == 500
    assert await asyncio.to_thread(inputs.exists)
    assert names(inputs) == []
    assert (await web.get("/v1/videos")).json()["data"] == []


def test_more_uploads_at_once_than_a_process_holds_are_told_to_come_again(
    http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    padded = png() + bytes(3 * 1024 * 1024)
    monkeypatch.setattr(body, "MAX_HELD", 2 * 1024 * 1024)
    answer = send(http, padded)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "uploads_busy")
    assert answer.headers["retry-after"] == "5"
    monkeypatch.undo()
    assert send(http, padded).status_code == 200


async def test_many_at_once_are_all_taken(web: httpx.AsyncClient, inputs: Path) -> None:
    picture = png((1500, 1000))
    parts = {"prompt": (None, "a"), "model": (None, "both"), "input_reference": ("a.png", picture)}
    answers = await asyncio.gather(*(web.post("/v1/videos", files=parts) for _ in range(12)))
    assert [answer.status_code for answer in answers] == [200] * 12
    assert len(names(inputs)) == 12
