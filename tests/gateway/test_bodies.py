"""Broken bodies are refused in words, and never become a job."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import httpx
import pytest
from fastapi import Request
from hypothesis import given
from hypothesis import strategies as st

from framekeeper.errors import FramekeeperError, InvalidRequest
from framekeeper.gateway.body import read_fields

JSON = "application/json"
FORM = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data; boundary=B"


def part(name: str, value: bytes, extra: bytes = b"") -> bytes:
    head = b'--B\r\nContent-Disposition: form-data; name="' + name.encode() + b'"' + extra
    return head + b"\r\n\r\n" + value + b"\r\n"


END = b"--B--\r\n"


def post(http: httpx.Client, content_type: str | None, body: bytes, **headers: str) -> httpx.Response:
    kind = {} if content_type is None else {"content-type": content_type}
    return http.post("/v1/videos", content=body, headers={**kind, **headers})


def refusal(answer: httpx.Response) -> dict[str, Any]:
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"]
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    return dict(error)


def jobs(http: httpx.Client) -> int:
    return len(http.get("/v1/videos?limit=100").json()["data"])


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        (JSON, b'{"prompt": "a cat", "fps": 4}'),
        ("application/json; charset=utf-8", b'{"prompt": "a cat", "fps": "4"}'),
        (FORM, b"prompt=a+cat&fps=4"),
        (MULTIPART, part("prompt", b"a cat") + part("fps", b"4") + END),
        ('Multipart/Form-Data; boundary="B"', part("prompt", b"a cat") + part("fps", b"4") + b"--B--"),
    ],
)  # fmt: skip
def test_each_kind_of_body_makes_the_same_video(
    shared_http: httpx.Client, content_type: str, body: bytes
) -> None:
    answer = post(shared_http, content_type, body)
    assert answer.status_code == 200, answer.text
    assert (answer.json()["prompt"], answer.json()["fps"]) == ("a cat", 4)


def test_unicode_prompt_survives_every_kind_of_body(shared_http: httpx.Client) -> None:
    prompt = "кот 🐈 naïve\nsecond line & more = 100 %"
    answers = [
        shared_http.post("/v1/videos", json={"prompt": prompt}),
        shared_http.post("/v1/videos", data={"prompt": prompt}),
        shared_http.post("/v1/videos", files={"prompt": (None, prompt)}),
    ]
    assert [answer.json()["prompt"] for answer in answers] == [prompt] * 3


@pytest.mark.parametrize(
    ("content_type", "body", "words"),
    [
        (JSON, b"", "The body is empty"),
        (JSON, b"{", "The body is not JSON: "),
        (JSON, b'{"prompt": "a cat"', "The body is not JSON: "),
        (JSON, b'{"prompt": "a cat"} x', "The body is not JSON: Extra data at line 1, column 21"),
        (JSON, b'\xef\xbb\xbf{"prompt": "a"}', "The body is not JSON"),
        (JSON, b'{"prompt": "\xff"}', "The body is not UTF-8: the byte at position 12"),
        (JSON, '{"prompt": "a"}'.encode("utf-16"), "not UTF-8"),
        (JSON, b'["a cat"]', "The body is an array: send a JSON object"),
        (JSON, b'"a cat"', "The body is a string"),
        (JSON, b"null", "The body is null"),
        (JSON, b"true", "The body is a boolean"),
        (JSON, b"5", "The body is a number"),
        (JSON, b'{"prompt": "a", "prompt": "b"}', "'prompt' is given more than once"),
        (JSON, b'{"prompt": "a", "guidance_scale": NaN}', "The body has NaN, which is not JSON"),
        (JSON, b'{"prompt": "a", "guidance_scale": -Infinity}', "The body has -Infinity"),
        (JSON, b'{"prompt": "a", "guidance_scale": 1e999}', "guidance_scale=inf is not finite"),
        (JSON, b'{"prompt": "a", "seed": ' + b"9" * 5000 + b"}", "too many digits"),
        (JSON, b'{"prompt": ' + b"[" * 100_000, "nested too deeply"),
        (JSON, b'{"prompt": ' + b"[" * 800 + b"]" * 800 + b"}", "prompt=an array is not text"),
        (JSON, b'{"prompt": "\\u0000"}', "NUL character"),
        (JSON, b'{"prompt": "\\ud800"}', "half of a surrogate pair"),
        (JSON, b'{"prompt": "a", "\\ud800": 1}', "is not a known field"),
        (JSON, b"{}", "prompt is missing"),
        (FORM, b"prompt", "not an urlencoded form"),
        (FORM, b'{"prompt": "1+1=2"}', "looks like JSON: set Content-Type: application/json"),
        (FORM, b"prompt=a&prompt=b", "given more than once"),
        (FORM, b"prompt=%ff", "not UTF-8"),
        (FORM, b"prompt=\xff", "not UTF-8"),
        (FORM, b"&".join(b"a%d=1" % n for n in range(101)), "not an urlencoded form"),
        (MULTIPART, part("prompt", b"a cat"), "ends before its closing boundary"),
        (MULTIPART, part("prompt", b"a cat") + b"--B", "ends before its closing boundary"),
        (MULTIPART, part("prompt", b"a cat")[:-4], "ends before its closing boundary"),
        (MULTIPART, part("prompt", b"a cat")[:20], "ends before its closing boundary"),
        (MULTIPART, b"not multipart at all", "malformed"),
        (MULTIPART, part("prompt", b"a") + part("prompt", b"b") + END, "'prompt' is given more than once"),
        (MULTIPART, part("prompt", b"\xff") + END, "'prompt' is not UTF-8: the byte at position 0 is wrong."),
        (
            MULTIPART, part("prompt", b"a") + part("input_reference", b"\x89PNG") + END,
            'for a picture, give its part a file name: name="input_reference"; filename=',
        ),
        (JSON, b'{"prompt": true}', "prompt=true is not text"),
        (MULTIPART, part("prompt", b"a", b'; filename="p.txt"') + END, "prompt=file 'p.txt' is not text"),
        (MULTIPART, b"--B\r\nX: y\r\n\r\na\r\n" + END, "has no name"),
        (MULTIPART, END, "prompt is missing"),
        (MULTIPART, b"".join(part(f"f{n}", b"") for n in range(101)) + END, "more than 100 parts"),
        ("multipart/form-data", part("prompt", b"a") + END, "has no boundary"),
        ("multipart/form-data; boundary=" + "b" * 5000, part("prompt", b"a") + END, "malformed"),
    ],
)  # fmt: skip
def test_broken_body_is_refused_and_makes_no_job(
    shared_http: httpx.Client, content_type: str, body: bytes, words: str
) -> None:
    before = jobs(shared_http)
    answer = post(shared_http, content_type, body)
    assert answer.status_code == 400, answer.text
    assert words in refusal(answer)["message"]
    assert jobs(shared_http) == before


@pytest.mark.parametrize(
    "content_type", [None, "text/plain", "application/xml", "nonsense", "application/jsonx"]
)
def test_other_content_types_are_refused(shared_http: httpx.Client, content_type: str | None) -> None:
    answer = post(shared_http, content_type, b'{"prompt": "a cat"}')
    assert answer.status_code == 415
    assert "Use application/json" in refusal(answer)["message"]


def test_compressed_body_is_refused(shared_http: httpx.Client) -> None:
    answer = post(shared_http, JSON, b"\x1f\x8b", **{"content-encoding": "gzip"})
    assert answer.status_code == 415


@pytest.mark.parametrize("size", [1024 * 1024 + 1, 4 * 1024 * 1024])
def test_large_body_is_refused_and_its_sender_reads_why(shared_http: httpx.Client, size: int) -> None:
    def chunks() -> Any:
        for _ in range(0, size, 65536):
            yield b" " * min(65536, size)
        yield b" "

    for body in (b" " * size, chunks()):
        answer = shared_http.post("/v1/videos", content=body, headers={"content-type": JSON})
        assert answer.status_code == 413
        error = refusal(answer)
        assert error["code"] == "body_too_large"
        assert "a picture of 10 MiB at most" in error["message"]


def test_announced_huge_body_is_refused_before_it_is_sent(shared_http: httpx.Client) -> None:
    address = shared_http.base_url
    with socket.create_connection((address.host, address.port or 0), timeout=10) as link:
        link.sendall(
            b"POST /v1/videos HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: 99999999999\r\n\r\n{"
        )
        assert link.recv(4096).startswith(b"HTTP/1.1 413 ")


def test_body_cut_off_by_the_connection_makes_no_job(shared_http: httpx.Client) -> None:
    before = jobs(shared_http)
    address = shared_http.base_url
    for kind, body in ((FORM, b"prompt=a+cat&fps"), (JSON, b'{"prompt": "a cat"}')):
        with socket.create_connection((address.host, address.port or 0), timeout=10) as link:
            link.sendall(
                f"POST /v1/videos HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\n"
                f"Content-Length: {len(body) + 9}\r\n\r\n".encode()
                + body
            )
            link.shutdown(socket.SHUT_WR)
            assert b"200 OK" not in link.recv(4096)
    assert jobs(shared_http) == before


async def read(content_type: str, body: bytes) -> dict[str, Any]:
    """The fields of a body, without a server."""

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    headers = [(b"content-type", content_type.encode())]
    return await read_fields(Request({"type": "http", "method": "POST", "headers": headers}, receive))


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        (MULTIPART, part("prompt", b"a\r\n--\r\ncat -- B") + part("fps", b"4") + b"--B--"),
        (JSON, b'{"prompt": "a cat", "fps": 4}'),
    ],
)
async def test_every_beginning_of_a_body_is_refused(content_type: str, body: bytes) -> None:
    assert len(await read(content_type, body)) == 2
    for length in range(len(body)):
        with pytest.raises(InvalidRequest):
            await read(content_type, body[:length])


PIECES = [
    b"--B",
    b"--",
    b"\r\n",
    b"\r",
    b"\n",
    b"\0",
    b'Content-Disposition: form-data; name="prompt"',
    b"\r\n\r\n",
    b"B",
    b'; filename="x"',
    b"{",
    b"}",
    b'"prompt"',
    b":",
    b"[",
    b"=",
    b"&",
    b"%f",
    b"%ff",
    b"\xff",
    b"NaN",
    b"1e9",
]
KINDS = [JSON, FORM, MULTIPART, "multipart/form-data; boundary=\xff", 'multipart/form-data; boundary=""']


@given(st.sampled_from(KINDS), st.lists(st.sampled_from(PIECES) | st.binary(max_size=8), max_size=20))
def test_any_bytes_are_fields_or_a_refusal(content_type: str, chunks: list[bytes]) -> None:
    try:
        fields = asyncio.run(read(content_type, b"".join(chunks)))
    except FramekeeperError:
        return
    assert all(isinstance(name, str) for name in fields)
