"""The picture that a video may start from, as a request gives it: `input_reference`.

A file part of a form, as OpenAI's clients send it, or {"image_url": "data:…"} in JSON; vllm-omni's name
`image_reference` means the same. An address is refused, and never fetched: whoever may submit could have this
service ask any host that it can reach (https://owasp.org/www-community/attacks/Server_Side_Request_Forgery).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from framekeeper.jobs.engines import Engine
from framekeeper.jobs.fields import Fields, shown
from framekeeper.jobs.shape import parse_size
from framekeeper.media import picture
from framekeeper.media.picture import PictureRefused

FIELD = "input_reference"
NAMES = (FIELD, "image_reference")
Mode = Literal["none", "optional", "required"]

#: How a form names the members of an object.
_MEMBER = re.compile(rf"({'|'.join(NAMES)})\[(image_url|file_id)\]", re.ASCII)
_DATA = re.compile(r"data:[^,]{0,200};base64,", re.ASCII | re.IGNORECASE)
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]{0,20}:", re.ASCII | re.IGNORECASE)
_INSTEAD = 'send the picture itself, as a file part of a form or as {"image_url": "data:image/png;base64,…"}'
#: A video is at most so many times as wide as it is high, or the other way round, when its size comes from a
#: picture; of a longer picture the middle is used.
LONGEST_ASPECT = 3


@dataclass(frozen=True, slots=True)
class UploadedFile:
    """A file part of a form. Its name is the client's: it is told back to it and used for nothing."""

    name: str
    data: bytes = b""

    def __repr__(self) -> str:
        return f"file {self.name!r}"

    @property
    def sha256(self) -> str:
        """A hash of what it holds, in hex."""
        return hashlib.sha256(self.data).hexdigest()


@dataclass(frozen=True, slots=True)
class Reference:
    """A picture whose header is fine: its file, and its size in pixels when it is upright."""

    field: str
    data: bytes
    width: int
    height: int


@dataclass(frozen=True, slots=True)
class Faulty:
    """What was given and is no picture, and why: a whole sentence."""

    field: str
    fault: str


def given(fields: Mapping[str, Any]) -> bool:
    """Whether a request has anything where a picture may stand."""
    return any(name.startswith(NAMES) for name in fields)


def resolved(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields with a Reference or Faulty in place of what was given; it takes time for a large picture."""
    values = dict(fields)
    found: list[tuple[str, Any]] = [
        (name, value) for name in NAMES if (value := values.pop(name, None)) is not None
    ]
    for name in [each for each in values if _MEMBER.fullmatch(each)]:
        match = _MEMBER.fullmatch(name)
        assert match is not None
        found.append((match[1], {match[2]: values.pop(name)}))
    if len(found) > 1:
        both = " and ".join(dict.fromkeys(name for name, _ in found))
        values[FIELD] = Faulty(found[0][0], f"{both} give more than one picture: set one of them.")
    elif found:
        values[FIELD] = _read(*found[0])
    return values


def _read(name: str, value: Any) -> Reference | Faulty:
    if isinstance(value, Reference | Faulty):
        return value
    try:
        data = _bytes_of(value)
        return Reference(name, data, *picture.measure(data))
    except PictureRefused as refused:
        return Faulty(name, f"{name} {refused}")


def _bytes_of(value: Any) -> bytes:
    """What was sent. Raises PictureRefused."""
    if isinstance(value, UploadedFile):
        return value.data
    if isinstance(value, str) and value.lstrip().startswith("{"):
        # vllm-omni's form has an object as JSON text.
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise PictureRefused(f"is not the JSON of an object: {_INSTEAD}.") from None
    if isinstance(value, Mapping):
        if set(value) == {"file_id"}:
            raise PictureRefused(f"has a file_id, and files are not kept here before a video: {_INSTEAD}.")
        if set(value) != {"image_url"}:
            raise PictureRefused(f"is not an object with image_url alone: {_INSTEAD}.")
        value = value["image_url"]
    if not isinstance(value, str):
        raise PictureRefused(f"is {_kind(value)}: {_INSTEAD}.")
    return _from_data_url(value)


def _kind(value: Any) -> str:
    return "an array, and a video starts from one picture" if isinstance(value, list) else shown(value)


def _from_data_url(text: str) -> bytes:
    match = _DATA.match(text)
    if match is None:
        if text[:5].lower() == "data:":
            raise PictureRefused(f"is a data: URL without ;base64, in front of its data: {_INSTEAD}.")
        if _ADDRESS.match(text):
            raise PictureRefused(f"is an address, {shown(text)}, and addresses are not fetched: {_INSTEAD}.")
        raise PictureRefused(f"is text, not a picture: {_INSTEAD}.")
    if len(text) - match.end() > (picture.MOST_BYTES + 2) // 3 * 4:
        raise PictureRefused(f"has more than {picture.MOST_BYTES} bytes (10 MiB): send a smaller picture.")
    try:
        return base64.b64decode(text[match.end() :].encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError):
        raise PictureRefused("is a data: URL whose data is not base64: encode the file's bytes.") from None


def mode_of(serving: Sequence[Engine]) -> Mode:
    """Whether the engines of one model take a picture. One of them that does not could get the job."""
    modes: set[Mode] = {engine.admits.get("image") or "none" for engine in serving}
    return next((mode for mode in ("none", "required", "optional") if mode in modes), "none")


def read_reference(
    read: Fields, model: str, serving: Sequence[Engine], engines: Sequence[Engine]
) -> Reference | None:
    """The picture, of fields that were `resolved`; faults are noted in `read`."""
    value, mode = read.values.get(FIELD), mode_of(serving)
    if value is None:
        if mode == "required":
            read.refuse(FIELD, f"{FIELD} is missing: {model} makes videos from a picture; {_INSTEAD}.")
        return None
    if mode == "none":
        takers = sorted(
            name
            for name in {engine.model for engine in engines} - {model}
            if mode_of([engine for engine in engines if engine.model == name]) != "none"
        )
        instead = f", or use {' or '.join(takers)}" if takers else ""
        read.refuse(
            value.field, f"{value.field}: {model} makes videos from text only; leave it out{instead}."
        )
        return None
    if isinstance(value, Faulty):
        read.refuse(value.field, value.fault)
        return None
    reference: Reference = value
    return reference


def size_like(reference: Reference, default: str, largest: int, multiple: int) -> tuple[int, int]:
    """The size of a video from this picture: its proportions, and about as many pixels as the default size.

    Sides in multiples of so many pixels, an area of at most `largest`.
    """
    width, height = parse_size(default)
    aspect = min(LONGEST_ASPECT, max(1 / LONGEST_ASPECT, reference.width / reference.height))
    across = math.sqrt(width * height * aspect)
    sides = [max(1, round(side / multiple)) for side in (across, across / aspect)]
    while sides[0] * sides[1] * multiple**2 > largest and max(sides) > 1:
        sides[sides.index(max(sides))] -= 1
    return sides[0] * multiple, sides[1] * multiple
