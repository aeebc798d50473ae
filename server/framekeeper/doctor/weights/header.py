"""Headers of safetensors files, read without any library.

The form is 8 bytes of length, so many bytes of JSON, then the tensors without a gap:
https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
import math
import stat
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from framekeeper.checkpoint.layout import LFS_START

BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "I16": 16, "U16": 16, "I32": 32, "U32": 32, "I64": 64, "U64": 64,
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "F16": 16, "BF16": 16, "F32": 32, "F64": 64, "C64": 64,
}  # fmt: skip
"""Bits of one element by the type's name in a header."""

_LENGTH = 8
_LARGEST = 2**63
_LONGEST = 100_000_000
"""The library refuses longer headers; a length beyond it is the start of some other file."""


class HeaderFault(Exception):
    """The file is no whole safetensors file; the message says what is wrong with it, without its path."""


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """One tensor: its bytes are `begin` to `end` of the file."""

    dtype: str
    shape: tuple[int, ...]
    file: Path
    begin: int
    end: int

    @property
    def elements(self) -> int:
        """Number of elements; 1 for a scalar."""
        return math.prod(self.shape)


def read_header(path: Path) -> dict[str, Tensor]:
    """Tensors by name. Raises HeaderFault unless the file is complete and its tensors lie end to end."""
    try:
        status = path.stat()
        size = status.st_size
        # Opening a pipe would wait for its writer, and a device has no end.
        if not stat.S_ISREG(status.st_mode):
            raise HeaderFault("is no file")
        with path.open("rb") as file:
            start = file.read(_LENGTH)
            length = struct.unpack("<Q", start)[0] if len(start) == _LENGTH else 0
            text = file.read(length) if length <= _LONGEST else b""
    except OSError as error:
        raise HeaderFault(f"cannot be read: {error.strerror}") from None
    if not size:
        raise HeaderFault("is empty")
    if start == LFS_START[:_LENGTH]:
        raise HeaderFault("is a git-lfs pointer instead of the file")
    if len(start) < _LENGTH:
        raise HeaderFault(f"ends after {size} bytes, inside its header's length")
    if length > _LONGEST or (text and not text.startswith(b"{")):
        raise HeaderFault("does not begin as a safetensors file does")
    if len(text) < length:
        raise HeaderFault(f"ends inside its header: {size} of at least {_LENGTH + length} bytes are there")
    return _tensors(_parse(text), path, _LENGTH + length, size)


def unreadable(directory: Path) -> list[str]:
    """A sentence for each file of a checkpoint that is truncated or no safetensors file; reads headers."""
    found = []
    for path in sorted(directory.glob("*/*.safetensors")):
        try:
            read_header(path)
        except HeaderFault as fault:
            found.append(f"{path} {fault}; fetch it again, or set FRAMEKEEPER_MODEL")
    return found


def _parse(text: bytes) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            raise HeaderFault(f"names {next(n for n in names if names.count(n) > 1)} twice in its header")
        return found

    try:
        content = json.loads(text, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise HeaderFault(f"has a header that is no JSON: {error}") from None
    if not isinstance(content, dict):
        raise HeaderFault("has a header that is no JSON object")
    return content


def _tensors(content: dict[str, Any], path: Path, start: int, size: int) -> dict[str, Tensor]:
    found = {}
    for name, entry in content.items():
        if name != "__metadata__":
            found[name] = _tensor(name, entry, path, start)
    position = start
    previous = "the header"
    for name, tensor in sorted(found.items(), key=lambda item: (item[1].begin, item[1].end)):
        if tensor.begin != position:
            what = "overlaps" if tensor.begin < position else "leaves a gap after"
            raise HeaderFault(
                f"has an offset that {what} {previous}: {name} begins at {tensor.begin - start}"
            )
        position, previous = tensor.end, name
    if position > size:
        raise HeaderFault(f"is truncated: {size:,} of {position:,} bytes are there")
    if position < size:
        raise HeaderFault(f"has {size - position:,} bytes after its last tensor")
    return found


def _tensor(name: str, entry: Any, path: Path, start: int) -> Tensor:
    try:
        dtype, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        numbers = [*shape, begin, end]
    except (KeyError, TypeError, ValueError):
        raise HeaderFault(f"describes {name} without dtype, shape and data_offsets") from None
    if any(not isinstance(number, int) or isinstance(number, bool) or number < 0 for number in numbers):
        raise HeaderFault(f"describes {name} with shape {shape} and offsets {begin}, {end}")
    if max(numbers) >= _LARGEST or math.prod(shape) >= _LARGEST:
        raise HeaderFault(f"describes {name} as larger than any disk")
    if dtype not in BITS:
        raise HeaderFault(f"holds {name} as {dtype}, which is no type of safetensors")
    wanted = math.prod(shape) * BITS[dtype]
    if wanted != (end - begin) * 8:
        raise HeaderFault(
            f"gives {name}, {dtype} of shape {list(shape)}, {end - begin:,} bytes instead of {wanted // 8:,}"
        )
    return Tensor(dtype=dtype, shape=tuple(shape), file=path, begin=start + begin, end=start + end)
