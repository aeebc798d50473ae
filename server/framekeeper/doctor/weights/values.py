"""The numbers themselves: finite, not zero, not denormal, of a plausible size.

Files are read in pieces, so memory stays below a few times `PIECE` whatever a tensor's size. Numbers are
judged by their bits: without its sign, a floating-point number grows as its bits do as an integer.
"""

from __future__ import annotations

import importlib.util
import math
import struct
from array import array
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from framekeeper.doctor.finding import Finding
from framekeeper.doctor.weights.header import Tensor
from framekeeper.doctor.weights.quantised import FLOAT8, SCALES

HAS_NUMPY = importlib.util.find_spec("numpy") is not None
"""The gateway's environment has none, and it is slower without. Imported late: a supervisor needs none."""

PIECE = 4 * 1024**2
# Fits into a processor's own cache: several passes are made over it.
_SLICE = 256 * 1024
_KERNEL_SILENT = (
    "https://github.com/vllm-project/vllm/blob/main/csrc/quantization/w8a8/cutlass/scaled_mm_entry.cu"
)
_NAN_VIDEO = "https://github.com/vllm-project/vllm-omni/issues/5263"
# A scale is the greatest weight of its row through 448 (or 127): between these for any trained model.
_SCALE_LEAST, _SCALE_MOST = 1e-9, 1e3
_WEIGHT_MOST = 1e4


@dataclass(frozen=True, kw_only=True)
class Form:
    """How a type's numbers lie in their bits: `special` is the least pattern that is infinite or no number,
    `normal` the least that is not denormal; None where the type has neither."""

    bytes: int
    special: int
    normal: int
    signed: bool = True


FORMS = {
    "BF16": Form(bytes=2, special=0x7F80, normal=0x0080),
    "F16": Form(bytes=2, special=0x7C00, normal=0x0400),
    "F32": Form(bytes=4, special=0x7F800000, normal=0x00800000),
    "F64": Form(bytes=8, special=0x7FF0000000000000, normal=0x0010000000000000),
    # Denormals of 8 bits are used on purpose.
    "F8_E4M3": Form(bytes=1, special=0x7F, normal=0),
    "F8_E5M2": Form(bytes=1, special=0x7C, normal=0),
}
_CODES = {1: "B", 2: "H", 4: "I", 8: "Q"}


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """Counts over one tensor. `greatest` is the greatest finite magnitude."""

    elements: int
    special: int
    zero: int
    denormal: int
    negative: int
    greatest: float


def readable(tensor: Tensor) -> bool:
    """Whether the type's numbers can be judged."""
    return tensor.dtype in FORMS or tensor.dtype == "I8"


def numbers(tensor: Tensor, progress: Callable[[int], None] = lambda _: None) -> Numbers:
    """Read one tensor piece by piece; `progress` is told the bytes of each."""
    counted = _with_numpy if HAS_NUMPY else _without_numpy
    special = zero = denormal = negative = greatest = 0
    with tensor.file.open("rb") as file:
        file.seek(tensor.begin)
        left = tensor.end - tensor.begin
        while left:
            wanted = min(left, PIECE)
            piece = file.read(wanted)
            if len(piece) < wanted:
                raise OSError("it became shorter while it was read")
            for start in range(0, len(piece), _SLICE):
                each = counted(piece[start : start + _SLICE], tensor.dtype)
                special, zero, denormal = special + each[0], zero + each[1], denormal + each[2]
                negative, greatest = negative + each[3], max(greatest, each[4])
            left -= len(piece)
            progress(len(piece))
    return Numbers(
        elements=tensor.elements,
        special=special,
        zero=zero,
        denormal=denormal,
        negative=negative,
        greatest=_value(greatest, tensor.dtype),
    )


def _with_numpy(piece: bytes, dtype: str) -> tuple[int, int, int, int, int]:
    import numpy  # noqa: PLC0415

    if dtype == "I8":
        signed = numpy.frombuffer(piece, dtype="int8")
        greatest = max(int(signed.max()), -int(signed.min()))
        return 0, signed.size - int(numpy.count_nonzero(signed)), 0, int((signed < 0).sum()), greatest
    form = FORMS[dtype]
    bits = numpy.frombuffer(piece, dtype=f"<u{form.bytes}")
    mask = (1 << (form.bytes * 8 - 1)) - 1
    size = bits & bits.dtype.type(mask)
    greatest = int(size.max())
    special = 0
    if greatest >= form.special:
        wrong = size >= form.special
        special = int(numpy.count_nonzero(wrong))
        finite = size[~wrong]
        greatest = int(finite.max()) if finite.size else 0
    zero = bits.size - int(numpy.count_nonzero(size))
    denormal = int(numpy.count_nonzero(size < form.normal)) - zero if form.normal else 0
    negative = int(numpy.count_nonzero(bits > mask))
    return special, zero, denormal, negative, greatest


def _without_numpy(piece: bytes, dtype: str) -> tuple[int, int, int, int, int]:
    width = 1 if dtype == "I8" else FORMS[dtype].bytes
    counts = Counter(array("b" if dtype == "I8" else _CODES[width], piece))
    if dtype == "I8":
        below = sum(n for value, n in counts.items() if value < 0)
        return 0, counts.get(0, 0), 0, below, max(abs(value) for value in counts)
    form = FORMS[dtype]
    mask = (1 << (width * 8 - 1)) - 1
    special = zero = denormal = negative = greatest = 0
    for bits, count in counts.items():
        size = bits & mask
        negative += count if bits > mask else 0
        if size >= form.special:
            special += count
        elif size == 0:
            zero += count
        else:
            denormal += count if size < form.normal else 0
            greatest = max(greatest, size)
    return special, zero, denormal, negative, greatest


def _value(bits: int, dtype: str) -> float:
    """The number of a magnitude's bits."""
    if dtype == "F8_E4M3":
        exponent, fraction = bits >> 3, bits & 7
        return math.ldexp(8 + fraction, exponent - 10) if exponent else math.ldexp(fraction, -9)
    widened = {"BF16": ("<I", bits << 16, "<f"), "F16": ("<H", bits, "<e"), "F32": ("<I", bits, "<f"),
               "F64": ("<Q", bits, "<d"), "F8_E5M2": ("<H", bits << 8, "<e")}.get(dtype)  # fmt: skip
    if widened is None:
        return float(bits)
    return float(struct.unpack(widened[2], struct.pack(widened[0], widened[1]))[0])


def is_scale(name: str) -> bool:
    """Whether a tensor scales weights or inputs, by its name."""
    return name.rpartition(".")[2] in (*SCALES, "input_scale")


def value_findings(name: str, tensor: Tensor, seen: Numbers) -> list[Finding]:
    """What is wrong with one tensor's numbers."""
    if is_scale(name):
        return _scale_findings(name, tensor, seen)
    found = []
    if seen.special:
        found.append(
            _fault(name, tensor, f"holds {seen.special:,} of {seen.elements:,} numbers NaN or infinite",
                   "one of them makes every frame black or noise, without any error", _NAN_VIDEO)
        )  # fmt: skip
    matrix = len(tensor.shape) > 1 and name.endswith("weight")
    if matrix and seen.zero == seen.elements:
        found.append(
            _fault(name, tensor, "is zero everywhere",
                   "a sparse or preallocated file that was never filled looks like that", _NAN_VIDEO)
        )  # fmt: skip
    elif matrix and seen.denormal > seen.elements // 2:
        found.append(_odd(name, tensor, f"is denormal in {seen.denormal:,} of {seen.elements:,} numbers"))
    elif matrix and tensor.dtype in FLOAT8 and seen.greatest < 8:
        found.append(_odd(name, tensor, f"uses {tensor.dtype} up to {seen.greatest:g} only"))
    elif matrix and tensor.dtype == "I8" and seen.greatest < 8:
        found.append(_odd(name, tensor, f"uses 8-bit integers up to {seen.greatest:g} only"))
    elif tensor.dtype not in (*FLOAT8, "I8") and seen.greatest > _WEIGHT_MOST:
        found.append(_odd(name, tensor, f"holds numbers up to {seen.greatest:.3g}"))
    return found


def _scale_findings(name: str, tensor: Tensor, seen: Numbers) -> list[Finding]:
    faults = (
        (seen.special, "NaN or infinite", "rows of NaN"),
        (seen.zero, "zero", "rows of zeros"),
        (seen.denormal, "denormal", "rows of rounding noise"),
        (seen.negative, "negative", "rows of the wrong sign"),
    )
    found = [
        _fault(name, tensor, f"has {count:,} of {seen.elements:,} scales that are {what}",
               f"cutlass_scaled_mm checks no values and answers {outcome}", _KERNEL_SILENT)
        for count, what, outcome in faults
        if count
    ]  # fmt: skip
    if not found and not _SCALE_LEAST <= seen.greatest <= _SCALE_MOST:
        found.append(_odd(name, tensor, f"has no scale above {seen.greatest:.3g}" if seen.greatest < 1
                          else f"has a scale of {seen.greatest:.3g}"))  # fmt: skip
    return found


def _fault(name: str, tensor: Tensor, seen: str, why: str, evidence: str) -> Finding:
    return Finding(
        check="values",
        severity="fatal",
        seen=f"{tensor.file}: {name} {seen}",
        why=why,
        advice="fetch the file again; if it is the same, quantise or convert the model again",
        evidence=evidence,
    )


def _odd(name: str, tensor: Tensor, seen: str) -> Finding:
    return Finding(
        check="values",
        severity="warn",
        seen=f"{tensor.file}: {name} {seen}",
        why="no trained Wan model looks like that; a wrong type or a wrong scale does",
        advice="compare with the source of the weights",
    )
