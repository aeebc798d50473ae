"""Reading the body of a request: bounded, strict, and never half.

FastAPI's own form parsing takes a multipart body that was cut off for a shorter form, decodes invalid UTF-8
as Latin-1 and keeps one of two equal fields. Here each of these is an error, so that a broken body never
becomes a default job.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl

from fastapi import Request
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from framekeeper.errors import FramekeeperError, InvalidRequest
from framekeeper.jobs.fields import shown
from framekeeper.jobs.reference import NAMES, UploadedFile

MAX_BODY = 1024 * 1024
#: The largest body with a picture: 10 MiB are 13.4 as the base64 of a data: URL.
MAX_WITH_PICTURE = 14 * MAX_BODY
#: One of these stands in the first MiB of a body that has a picture: all other fields together are shorter.
PICTURE_SIGNS = (b"filename", b"data:image/")
#: Bytes of all large bodies that a process holds at once.
MAX_HELD = 96 * MAX_BODY
#: What is read and dropped of a body that is too large, so that its sender gets to read the answer.
MAX_DRAINED = 24 * MAX_BODY
MAX_FIELDS = 100
#: A client that sends so slowly is gone or hostile.
BODY_SECONDS = 30.0


class BodyTooLarge(FramekeeperError):
    """The body is over 1 MiB, or 14 MiB with a picture: send a picture of 10 MiB at most, less text."""

    status = 413
    code = "body_too_large"
    type = "invalid_request_error"
    advice = "Send a smaller picture, or less text."


class UploadsBusy(FramekeeperError):
    """So many pictures are being sent here that no more are read at the moment."""

    status = 503
    code = "uploads_busy"
    advice = "Repeat the request after Retry-After seconds."


class UnsupportedMediaType(FramekeeperError):
    """The request's body has a content type that is not read here."""

    status = 415
    code = "unsupported_media_type"
    type = "invalid_request_error"
    advice = "Use application/json, multipart/form-data or application/x-www-form-urlencoded."


class BodyTooSlow(FramekeeperError):
    """The request's body did not arrive in time."""

    status = 408
    code = "body_too_slow"
    type = "invalid_request_error"
    advice = "Send the request again."


async def read_fields(request: Request) -> dict[str, Any]:
    """The fields of a JSON object or a form. Raises FramekeeperError with status 400, 408, 413 or 415."""
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise UnsupportedMediaType("The body is compressed: send it without Content-Encoding.")
    body = await _read(request)
    if kind == b"application/json":
        return _from_json(body)
    if kind == b"multipart/form-data":
        return _from_multipart(body, options.get(b"boundary", b""))
    if kind == b"application/x-www-form-urlencoded":
        return _from_urlencoded(body)
    given = f"is {shown(kind.decode('latin-1'))}" if kind else "is missing"
    raise UnsupportedMediaType(f"Content-Type {given}: {UnsupportedMediaType.advice}")


def forget(request: Request) -> None:
    """What was sent is stored: there is room for another body, though this request may go on for long."""
    request.state.body.let_go()


async def _read(request: Request) -> bytes:
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > MAX_DRAINED:
        raise BodyTooLarge
    body = request.state.body = _Body()
    if (task := asyncio.current_task()) is not None:
        task.add_done_callback(lambda _: body.let_go())
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in request.stream():
                body.take(chunk)
                if body.received > MAX_DRAINED:
                    break
    except TimeoutError:
        raise BodyTooSlow from None
    if body.received > len(body.kept):
        raise BodyTooLarge
    if not body.kept:
        raise InvalidRequest("The body is empty: send a JSON object or a form with at least a prompt.")
    return bytes(body.kept)


class _Body:
    """What has arrived of one body; only one with a picture in it is kept beyond 1 MiB."""

    held = 0
    """Bytes of large bodies whose requests this process is busy with."""

    def __init__(self) -> None:
        self.kept = bytearray()
        self.received = 0
        self._most = MAX_BODY
        self._counted = 0

    def take(self, chunk: bytes) -> None:
        """Keep it, or only count it. Raises UploadsBusy."""
        if self.received + len(chunk) > self._most == MAX_BODY and any(
            sign in self.kept or sign in chunk[:MAX_BODY] for sign in PICTURE_SIGNS
        ):
            self._most = MAX_WITH_PICTURE
        self.received += len(chunk)
        if self.received > self._most:
            return
        self.kept += chunk
        if self._most > MAX_BODY:
            more = len(self.kept) - self._counted
            if _Body.held + more > MAX_HELD:
                raise UploadsBusy(retry_after=5)
            _Body.held += more
            self._counted += more

    def let_go(self) -> None:
        """Its request needs it no more."""
        _Body.held -= self._counted
        self._counted = 0


def _decode(data: bytes, what: str, *, param: str | None = None, instead: str = "") -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"{what} is not UTF-8: the byte at position {error.start} is wrong{instead}.", param=param
        ) from None


def _from_pairs(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in pairs:
        if name in fields:
            raise InvalidRequest(f"{shown(name)} is given more than once: give it once.", param=name)
        fields[name] = value
    return fields


def _refuse_constant(word: str) -> Any:
    raise InvalidRequest(f"The body has {word}, which is not JSON: set a finite number.")


def _from_json(body: bytes) -> dict[str, Any]:
    text = _decode(body, "The body")
    try:
        value = json.loads(text, object_pairs_hook=_from_pairs, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise InvalidRequest(
            f"The body is not JSON: {error.msg} at line {error.lineno}, column {error.colno}."
        ) from None
    except RecursionError:
        raise InvalidRequest("The body is nested too deeply: send a flat JSON object.") from None
    except ValueError:
        # Python refuses to read integers of thousands of digits.
        raise InvalidRequest("The body has a number of too many digits.") from None
    if not isinstance(value, dict):
        kind = {list: "an array", str: "a string", type(None): "null", bool: "a boolean"}.get(
            type(value), "a number"
        )
        raise InvalidRequest(f'The body is {kind}: send a JSON object such as {{"prompt": "a cat"}}.')
    return value


def _from_urlencoded(body: bytes) -> dict[str, Any]:
    text = _decode(body, "The body")
    if text.lstrip().startswith("{"):
        # What `curl -d '{…}'` sends.
        raise InvalidRequest("The body looks like JSON: set Content-Type: application/json.")
    try:
        pairs = parse_qsl(
            text, keep_blank_values=True, strict_parsing=True, errors="strict", max_num_fields=MAX_FIELDS
        )
    except UnicodeDecodeError:
        raise InvalidRequest("A field of the form is not UTF-8: encode it as UTF-8 before quoting.") from None
    except ValueError:
        raise InvalidRequest(
            "The body is not an urlencoded form: send name=value pairs joined by &."
        ) from None
    return _from_pairs(pairs)


@dataclass(slots=True)
class _Part:
    header_name: bytearray = field(default_factory=bytearray)
    header_value: bytearray = field(default_factory=bytearray)
    disposition: bytes | None = None
    data: bytearray = field(default_factory=bytearray)

    def end_header(self) -> None:
        if bytes(self.header_name).lower() == b"content-disposition":
            self.disposition = bytes(self.header_value)
        self.header_name.clear()
        self.header_value.clear()

    def pair(self) -> tuple[str, Any]:
        _, options = parse_options_header(self.disposition)
        if b"name" not in options:
            raise InvalidRequest(
                "A part of the form has no name: set Content-Disposition: form-data; name=…."
            )
        name = _decode(options[b"name"], "A field's name")
        if b"filename" in options:
            return name, UploadedFile(options[b"filename"].decode("utf-8", "replace"), bytes(self.data))
        instead = f'; for a picture, give its part a file name: name="{name}"; filename="…"'
        text = _decode(bytes(self.data), shown(name), param=name, instead=instead if name in NAMES else "")
        return name, text


class _Form:
    """The parts of a multipart body as the parser finds them."""

    def __init__(self) -> None:
        self.parts: list[_Part] = []
        self.whole = False

    def callbacks(self) -> dict[str, Any]:
        return {
            "on_part_begin": self.begin,
            "on_header_field": lambda data, start, end: self.parts[-1].header_name.extend(data[start:end]),
            "on_header_value": lambda data, start, end: self.parts[-1].header_value.extend(data[start:end]),
            "on_header_end": self.end_header,
            "on_part_data": lambda data, start, end: self.parts[-1].data.extend(data[start:end]),
            "on_end": self.end,
        }

    def begin(self) -> None:
        if len(self.parts) >= MAX_FIELDS:
            raise InvalidRequest(f"The form has more than {MAX_FIELDS} parts: send only documented fields.")
        self.parts.append(_Part())

    def end_header(self) -> None:
        self.parts[-1].end_header()

    def end(self) -> None:
        self.whole = True


def _from_multipart(body: bytes, boundary: bytes) -> dict[str, Any]:
    if not boundary:
        raise InvalidRequest(
            "Content-Type multipart/form-data has no boundary: let your HTTP library set the header."
        )
    form = _Form()
    try:
        parser = MultipartParser(boundary, form.callbacks())  # type: ignore[arg-type]
        parser.write(body)
    except FormParserError:
        raise InvalidRequest(
            "The multipart body is malformed: send it again as your HTTP library makes it."
        ) from None
    # The parser itself accepts a body that stops anywhere.
    if not form.whole:
        raise InvalidRequest(
            "The multipart body ends before its closing boundary: it was cut off; send it whole."
        )
    return _from_pairs(part.pair() for part in form.parts)
