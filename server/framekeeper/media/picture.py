"""Pictures that clients send: what they are is told by their bytes alone, and they are written anew as PNG.

Nothing of the file itself is kept: no metadata (a phone writes where a picture was taken), no colour profile,
nothing behind its end. The decoders are Pillow's, and only those of the three formats are ever asked.
"""

from __future__ import annotations

import io
import math

from PIL import ExifTags, Image, ImageOps

FORMATS = ("PNG", "JPEG", "WEBP")
MOST_BYTES = 10 * 1024 * 1024
#: Pillow takes four bytes for each of these, and sixteen while it decodes a WebP.
MOST_PIXELS = {"PNG": 40_000_000, "JPEG": 40_000_000, "MPO": 40_000_000, "WEBP": 16_000_000}
MOST_SIDE = 16_384
#: Each scan of a progressive JPEG is a pass over all of it; encoders write ten or so, an attacker thousands
#: (https://libjpeg-turbo.org/pmwiki/uploads/About/TwoIssueswiththeJPEGStandard.pdf).
MOST_SCANS = 100
#: Orientations that lay a picture on its side
#: (https://pillow.readthedocs.io/en/stable/reference/ImageOps.html#PIL.ImageOps.exif_transpose).
_SIDEWAYS = (5, 6, 7, 8)
_SEND = "send a PNG, JPEG or WebP picture"
_OTHERS = (
    (b"GIF8", "a GIF"),
    (b"BM", "a BMP"),
    (b"II*\0", "a TIFF"),
    (b"MM\0*", "a TIFF"),
    (b"%PDF", "a PDF"),
    (b"<", "text with markup, such as SVG or HTML"),
)


class PictureRefused(ValueError):
    """Why a file is not taken, and what to send; fit to follow the name of a field."""


def measure(data: bytes) -> tuple[int, int]:
    """Width and height in pixels as it is to be seen, from the file's header: nothing is decoded.

    Raises PictureRefused for a file of another kind, too large a file or picture, or an animated one.
    """
    if not data:
        raise PictureRefused(f"is an empty file: {_SEND}.")
    if len(data) > MOST_BYTES:
        raise PictureRefused(
            f"has {len(data)} bytes, the most is {MOST_BYTES} (10 MiB): send a smaller picture."
        )
    with _opened(data) as image:
        width, height = image.size
        kind = image.format or ""
        if width * height > MOST_PIXELS[kind] or max(width, height) > MOST_SIDE:
            raise _too_large(f"{width}x{height}", kind)
        # A phone's JPEG may hold a second picture behind the first (MPO); it is not animated by that.
        if getattr(image, "is_animated", False) and kind in ("PNG", "WEBP"):
            raise PictureRefused("is animated: send a single picture.")
        if kind in ("JPEG", "MPO") and data.count(b"\xff\xda") > MOST_SCANS:
            raise PictureRefused(f"is a JPEG of more than {MOST_SCANS} scans: save it anew and send that.")
        # That of a PNG may stand behind its pixels, and would have them decoded.
        sideways = kind != "PNG" and image.getexif().get(ExifTags.Base.Orientation) in _SIDEWAYS
    return (height, width) if sideways else (width, height)


def rewritten(data: bytes, width: int, height: int) -> bytes:
    """A PNG of it, RGB with 8 bits, upright, what is transparent white.

    A picture that is larger than needed is scaled down, so that it just covers width x height pixels; its
    proportions stay. Raises PictureRefused as `measure` does, and for a file that is damaged.
    """
    measure(data)
    with _opened(data) as image:
        try:
            # Only a JPEG can be decoded smaller than it is, by halves.
            image.draft("RGB", _covering(*image.size, max(width, height), max(width, height)))
            whole = _upright_rgb(image, width, height)
            size = _covering(*whole.size, width, height)
            if size != whole.size:
                whole = whole.resize(size, Image.Resampling.LANCZOS)
        except Exception as error:
            # What decoders raise for a hostile file is documented nowhere.
            cut = "it was cut off" if "truncated" in str(error) else type(error).__name__
            raise PictureRefused(f"cannot be decoded ({cut}): the file is damaged, {_SEND}.") from error
    whole.info.clear()
    target = io.BytesIO()
    whole.save(target, "PNG", compress_level=3)
    return target.getvalue()


def most_bytes(width: int, height: int, wanted_width: int, wanted_height: int) -> int:
    """Bytes that `rewritten` makes at most of a picture of width x height pixels: PNG adds less than 1 %."""
    across, down = _covering(width, height, wanted_width, wanted_height)
    return across * down * 3 * 101 // 100 + 4096


def _opened(data: bytes) -> Image.Image:
    """With its header read."""
    try:
        return Image.open(io.BytesIO(data), formats=FORMATS)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise _too_large("too many pixels") from None
    except Exception as error:
        what = next((what for start, what in _OTHERS if data.lstrip().startswith(start)), None)
        said = f"is {what}" if what else "is no picture of a kind that is read here"
        raise PictureRefused(f"{said}: {_SEND}.") from error


def _too_large(found: str, kind: str = "PNG") -> PictureRefused:
    most = f"{MOST_PIXELS[kind] // 1_000_000} megapixels{' in a WebP' if kind == 'WEBP' else ''}"
    return PictureRefused(f"has {found}, the most are {most} and {MOST_SIDE} a side: send a smaller picture.")


def _upright_rgb(image: Image.Image, width: int, height: int) -> Image.Image:
    """It as RGB and upright, smaller by a whole factor where it still covers width x height pixels then.

    By stripes: a second copy of the largest picture would be 160 MB more.
    """
    image.load()
    orientation = image.getexif().get(ExifTags.Base.Orientation)
    if orientation in _SIDEWAYS:
        width, height = height, width
    factor = max(1, min(image.width // width, image.height // height))
    whole = Image.new("RGB", (-(-image.width // factor), -(-image.height // factor)))
    stripe = factor * max(1, 256 // factor)
    for top in range(0, image.height, stripe):
        part = _rgb(image.crop((0, top, image.width, min(top + stripe, image.height))))
        whole.paste(part.reduce(factor) if factor > 1 else part, (0, top // factor))
    whole.getexif()[ExifTags.Base.Orientation] = orientation or 1
    ImageOps.exif_transpose(whole, in_place=True)
    return whole


def _rgb(image: Image.Image) -> Image.Image:
    if image.has_transparency_data:
        seen = image.convert("RGBA")
        white = Image.new("RGB", seen.size, "white")
        white.paste(seen, mask=seen.getchannel("A"))
        return white
    if image.mode.startswith("I"):
        # Greys of 16 bits, which Pillow would cut off at 255.
        image = image.convert("I").point(lambda grey: grey * (1 / 256)).convert("L")
    return image.convert("RGB")


def _covering(width: int, height: int, wanted_width: int, wanted_height: int) -> tuple[int, int]:
    """The size at which it just covers what is wanted; its own where it is smaller."""
    scale = min(1.0, max(wanted_width / width, wanted_height / height))
    return math.ceil(width * scale), math.ceil(height * scale)
