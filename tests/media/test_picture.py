"""Pictures of strangers: what is taken, what it becomes, and what is refused before it is decoded."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
import zlib
from contextlib import suppress
from typing import Any

import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from framekeeper.media import picture
from framekeeper.media.picture import PictureRefused, measure, rewritten


def file(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    target = io.BytesIO()
    image.save(target, kind, **options)
    return target.getvalue()


def plain(size: tuple[int, int] = (64, 48), colour: str = "red", mode: str = "RGB") -> Image.Image:
    return Image.new(mode, size, colour)


def read(data: bytes) -> Image.Image:
    image = Image.open(io.BytesIO(data))
    image.load()
    return image


def header_only(width: int, height: int) -> bytes:
    """A PNG of a few bytes that says it is this large."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    body = chunk(b"IDAT", zlib.compress(b"\0" * 1000)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + head + body


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_each_kind_becomes_an_rgb_png_of_the_same_colour(kind: str) -> None:
    data = file(plain(), kind)
    assert measure(data) == (64, 48)
    image = read(rewritten(data, 64, 48))
    assert (image.format, image.mode, image.size) == ("PNG", "RGB", (64, 48))
    red, green, blue = image.getpixel((30, 20))  # type: ignore[misc]
    assert red > 245
    assert max(green, blue) < 10


@pytest.mark.parametrize(
    ("image", "kind", "expected"),
    [
        (Image.new("I;16", (8, 8), 32768), "PNG", (128, 128, 128)),
        (Image.new("L", (8, 8), 77), "PNG", (77, 77, 77)),
        (Image.new("1", (8, 8), 1), "PNG", (255, 255, 255)),
        (plain().convert("P"), "PNG", (255, 0, 0)),
        (Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "JPEG", (254, 0, 0)),
        (Image.new("RGBA", (8, 8), (255, 0, 0, 0)), "PNG", (255, 255, 255)),
        (Image.new("RGBA", (8, 8), (255, 0, 0, 0)), "WEBP", (255, 255, 255)),
        (Image.new("LA", (8, 8), (0, 0)), "PNG", (255, 255, 255)),
    ],
)
def test_other_modes_become_what_the_eye_sees(
    image: Image.Image, kind: str, expected: tuple[int, ...]
) -> None:
    seen = read(rewritten(file(image, kind), 8, 8))
    assert seen.mode == "RGB"
    assert seen.getpixel((3, 3)) == pytest.approx(expected, abs=2)


@pytest.mark.parametrize("kind", ["JPEG", "WEBP"])
def test_picture_of_a_turned_camera_is_upright_and_tells_no_place(kind: str) -> None:
    image = plain((64, 32))
    image.paste("blue", (0, 0, 32, 32))
    exif = Image.Exif()
    exif[0x0112] = 6
    exif[0x010F] = "A maker of phones"
    exif.get_ifd(0x8825)[2] = (52.0, 31.0, 12.0)
    data = file(image, kind, exif=exif)
    assert b"A maker of phones" in data
    assert measure(data) == (32, 64)
    png = rewritten(data, 32, 64)
    upright = read(png)
    assert upright.size == (32, 64)
    assert upright.getpixel((16, 8)) == pytest.approx((0, 0, 255), abs=4)
    assert upright.getpixel((16, 56)) == pytest.approx((255, 0, 0), abs=4)
    assert (upright.info, dict(upright.getexif())) == ({}, {})
    assert b"maker" not in png


def test_texts_profiles_and_what_stands_behind_the_end_are_gone() -> None:
    notes = PngInfo()
    notes.add_text("Author", "somebody")
    data = file(plain(), pnginfo=notes, icc_profile=b"a profile") + b"<script>alert(1)</script>"
    png = rewritten(data, 64, 48)
    assert not any(word in png for word in (b"somebody", b"script", b"iCCP", b"tEXt"))


def test_larger_picture_just_covers_the_video_and_keeps_its_proportions() -> None:
    assert read(rewritten(file(plain((1600, 800))), 320, 200)).size == (400, 200)
    assert read(rewritten(file(plain((1600, 800)), "JPEG"), 320, 200)).size == (400, 200)
    assert read(rewritten(file(plain((16, 8))), 320, 200)).size == (16, 8)


def test_most_bytes_is_never_too_few() -> None:
    noise = Image.effect_noise((300, 200), 200).convert("RGB")
    assert len(rewritten(file(noise), 320, 208)) <= picture.most_bytes(300, 200, 320, 208)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "an empty file"),
        (b"\x89PNG", "no picture of a kind that is read here: send a PNG, JPEG or WebP"),
        (file(plain(), "GIF"), "is a GIF"),
        (file(plain(), "BMP"), "is a BMP"),
        (file(plain(), "TIFF"), "is a TIFF"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "text with markup, such as SVG or HTML"),
        (b"  <!doctype html><p>hello", "text with markup"),
        (b"%PDF-1.7", "is a PDF"),
        (b"<html>" + file(plain()), "text with markup"),
        (b"x" * (picture.MOST_BYTES + 1), "the most is 10485760 (10 MiB)"),
        (header_only(100_000, 100_000), "the most are 40 megapixels"),
        (header_only(16_385, 1), "has 16385x1, the most are 40 megapixels and 16384 a side"),
        (header_only(8000, 6000), "has 8000x6000"),
        (file(plain((5000, 4000)), "WEBP"), "has 5000x4000, the most are 16 megapixels in a WebP"),
        (file(plain(), save_all=True, append_images=[plain(colour="blue")]), "animated"),
        (file(plain(), "WEBP", save_all=True, append_images=[plain(colour="blue")]), "animated"),
        (file(plain(), "JPEG") + b"\xff\xda" * 101, "more than 100 scans"),
    ],
)
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_what_is_no_fit_picture_is_refused_by_its_header(data: bytes, words: str) -> None:
    with pytest.raises(PictureRefused) as refused:
        measure(data)
    assert words in str(refused.value)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_picture_that_was_cut_off_is_refused(kind: str) -> None:
    data = file(Image.effect_noise((200, 200), 100), kind)
    with pytest.raises(PictureRefused, match=r"cannot be decoded|no picture of a kind"):
        rewritten(data[: len(data) * 2 // 3], 64, 64)


def test_broken_bytes_never_raise_anything_else() -> None:
    for kind in ("PNG", "JPEG", "WEBP"):
        whole = file(Image.effect_noise((40, 40), 100), kind)
        for place in range(0, len(whole), max(1, len(whole) // 60)):
            broken = whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :]
            with suppress(PictureRefused):
                assert read(rewritten(broken, 40, 40)).mode == "RGB"


def test_phone_jpeg_with_a_second_picture_behind_it_is_taken() -> None:
    both = file(plain(), "MPO", save_all=True, append_images=[plain(colour="blue")])
    assert read(rewritten(both, 64, 48)).getpixel((5, 5)) == pytest.approx((254, 0, 0), abs=3)


@pytest.mark.slow
def test_largest_picture_is_decoded_in_little_more_memory_than_it_has_pixels() -> None:
    """8000x5000 pixels of four bytes are 153 MiB; the whole program stays below 256."""
    code = """
import pathlib, re, sys
from framekeeper.media.picture import rewritten
png = rewritten(sys.stdin.buffer.read(), 832, 480)
status = pathlib.Path("/proc/self/status").read_text()
print(len(png) > 0, int(re.search(r"VmHWM:\\s+(\\d+) kB", status)[1]) // 1024)
"""
    data = file(Image.new("RGBA", (8000, 5000), (9, 9, 9, 99)), compress_level=1)
    done = subprocess.run([sys.executable, "-c", code], input=data, capture_output=True, check=True)
    made, peak = done.stdout.split()
    assert made == b"True"
    assert int(peak) < 256
