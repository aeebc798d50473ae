"""Frames as they were before H.264.

x264's output depends on what its memory held before: the same 64x64 frames, encoded twice in one process,
differ now and then. The sheet beside a video is a JPEG of its frames, the same for the same frames.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from framekeeper.media.encode import SHEET_COLUMNS, read_video


def frames_of_sheet(path: Path, *, frames: int = 9, side: int = 64) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """All frames of a small square video: (frames, side, side, 3)."""
    sheet = read_video(path)[0]
    assert sheet.shape == (-(-frames // SHEET_COLUMNS) * side, SHEET_COLUMNS * side, 3)
    places = [divmod(each, SHEET_COLUMNS) for each in range(frames)]
    return np.stack(
        [sheet[row * side : (row + 1) * side, column * side : (column + 1) * side] for row, column in places]
    )
