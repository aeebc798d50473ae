"""From frames to an H.264 file that every browser plays, and back for the warm-up's check."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import av
import numpy as np

from framekeeper.media import durable

#: Constant rate factor of x264; 18 is held to be visually lossless (https://trac.ffmpeg.org/wiki/Encode/H.264).
QUALITY = "18"
PRESET = "veryfast"
#: Longest side of a thumbnail in pixels.
THUMBNAIL = 480
#: Most frames of a sheet, in rows of five, and the longest side of each.
SHEET = 25
SHEET_COLUMNS = 5
SHEET_SIDE = 160

Frames = np.ndarray[Any, np.dtype[Any]]


def to_bytes(frame: Frames) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """One frame (height, width, 3) of floats in 0..1 as uint8; values outside are clipped."""
    if frame.dtype == np.uint8:
        return frame
    pixels: np.ndarray[Any, np.dtype[np.uint8]] = np.rint(np.clip(frame, 0.0, 1.0) * 255).astype(np.uint8)
    return pixels


def write_video(frames: Frames, fps: int, path: Path) -> int:
    """Write frames (frames, height, width, 3) as H.264, yuv420p, index first; return the file's bytes.

    Height and width must be even. The file appears complete or not at all, also after a power cut.
    Raises OSError when it cannot be written.
    """
    part = path.with_name(path.name + ".part")
    height, width = frames.shape[1:3]
    try:
        with av.open(str(part), "w", format="mp4", options={"movflags": "+faststart"}) as container:
            stream = container.add_stream("libx264", rate=fps, options={"crf": QUALITY, "preset": PRESET})
            stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
            # BT.709, said in the file: players guess otherwise, and by size.
            context = stream.codec_context
            context.colorspace, context.color_primaries, context.color_trc, context.color_range = 1, 1, 1, 1
            for frame in frames:
                picture = av.VideoFrame.from_ndarray(to_bytes(frame), format="rgb24").reformat(
                    format="yuv420p", dst_colorspace="ITU709"
                )
                container.mux(stream.encode(picture))
            container.mux(stream.encode())
        size = part.stat().st_size
        durable.rename(part, path)
        return size
    finally:
        part.unlink(missing_ok=True)


def write_thumbnail(frame: Frames, path: Path) -> int:
    """Write one frame (height, width, 3) as JPEG, at most `THUMBNAIL` pixels a side; return its bytes."""
    return _write_jpeg(_scaled(frame, THUMBNAIL), path)


def write_sheet(frames: Frames, path: Path) -> int:
    """Write up to `SHEET` frames of (frames, height, width, 3), evenly apart, as one JPEG; return its bytes.

    They go by rows, the first and the last frame among them; what is left of the last row is black.
    """
    chosen = np.unique(np.linspace(0, len(frames) - 1, min(SHEET, len(frames))).round().astype(int))
    cells = [_scaled(frames[each], SHEET_SIDE).to_ndarray(format="rgb24") for each in chosen]
    height, width = cells[0].shape[:2]
    columns = min(SHEET_COLUMNS, len(cells))
    rows = -(-len(cells) // columns)
    sheet = np.zeros((rows * height, columns * width, 3), dtype=np.uint8)
    for place, cell in enumerate(cells):
        row, column = divmod(place, columns)
        sheet[row * height : (row + 1) * height, column * width : (column + 1) * width] = cell
    return _write_jpeg(av.VideoFrame.from_ndarray(sheet, format="rgb24"), path)


def _scaled(frame: Frames, side: int) -> av.VideoFrame:
    """One frame with at most so many pixels a side, even ones, as JPEG needs them."""
    height, width = frame.shape[:2]
    scale = min(1.0, side / max(height, width))
    return av.VideoFrame.from_ndarray(to_bytes(frame), format="rgb24").reformat(
        width=max(2, round(width * scale / 2) * 2),
        height=max(2, round(height * scale / 2) * 2),
        format="rgb24",
    )


def _write_jpeg(picture: av.VideoFrame, path: Path) -> int:
    part = path.with_name(path.name + ".part")
    try:
        with av.open(str(part), "w", format="image2", options={"update": "1"}) as container:
            stream = container.add_stream("mjpeg", rate=1, options={"qmin": "2", "qmax": "4"})
            stream.width, stream.height, stream.pix_fmt = picture.width, picture.height, "yuvj420p"
            container.mux(stream.encode(picture.reformat(format="yuvj420p")))
            container.mux(stream.encode())
        size = part.stat().st_size
        durable.rename(part, path)
        return size
    finally:
        part.unlink(missing_ok=True)


def read_video(path: Path) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Decode a whole video to (frames, height, width, 3), uint8. Raises av.FFmpegError on a broken file."""
    with av.open(str(path)) as container:
        frames: np.ndarray[Any, np.dtype[np.uint8]] = np.stack(
            [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
        )
    return frames
