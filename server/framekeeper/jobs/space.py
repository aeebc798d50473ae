"""How many bytes the jobs that are open will need, so that the disk is never promised twice."""

from __future__ import annotations

from collections.abc import Sequence

from framekeeper.jobs.video import VideoRequest

#: Bytes a pixel of a frame, before any video was measured. White noise, the worst there is, took 0.67 as
#: encode.py encodes (128x128, 33 frames); a picture takes a tenth of that and less.
BYTES_PER_PIXEL = 0.7
#: Of this many newest videos the largest ratio counts.
NEWEST = 50
_PIXELS = (
    "(request ->> 'width')::float8 * (request ->> 'height')::float8 * (request ->> 'num_frames')::float8"
)
#: Bytes a pixel of the newest videos, the largest of them; NULL before there was one.
RATIO = f"""
    SELECT max(bytes / ({_PIXELS}))::float8 AS ratio FROM (
        SELECT bytes, request FROM videos WHERE bytes IS NOT NULL ORDER BY created_at DESC LIMIT {NEWEST}
    ) newest
"""


def bytes_needed(open_pixels: int, bytes_per_pixel: float | None, requests: Sequence[VideoRequest]) -> int:
    """Bytes of media that these jobs and all open ones will write."""
    pixels = open_pixels + sum(each.width * each.height * each.num_frames for each in requests)
    # A video may be less compressible than those before it.
    ratio = min(BYTES_PER_PIXEL, 2 * bytes_per_pixel) if bytes_per_pixel else BYTES_PER_PIXEL
    return int(pixels * ratio)
