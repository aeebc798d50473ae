"""What is no video, whoever asks: the worker, and triage without one."""

from __future__ import annotations

import numpy as np
import pytest

from framekeeper.engine.backends.backend import Generation
from framekeeper.engine.frames import FramesRejected, inspected
from framekeeper.engine.protocol import Generate

REQUEST = Generate(
    job="video_1", attempt=1, directory="", prompt="a cat", negative_prompt=None, width=16, height=16,
    num_frames=5, fps=8, num_inference_steps=2, guidance_scale=4.0, guidance_scale_2=3.0,
    boundary_ratio=0.875, flow_shift=5.0, seed=1,
)  # fmt: skip
PICTURE = np.random.default_rng(0).integers(0, 255, (5, 16, 16, 3), dtype=np.uint8)


def generation(frames: np.ndarray, *, finite: bool = True) -> Generation:
    return Generation(frames=frames, finite=finite, seconds={}, expert_steps={}, peak_memory_bytes=0)


def test_a_picture_is_taken() -> None:
    assert inspected(generation(PICTURE), REQUEST).frames == 5


def test_frames_that_were_not_finite_before_they_became_bytes_are_refused() -> None:
    with pytest.raises(FramesRejected, match="not finite"):
        inspected(generation(PICTURE, finite=False), REQUEST)


def test_black_or_too_few_frames_are_refused() -> None:
    with pytest.raises(FramesRejected, match="black"):
        inspected(generation(np.zeros_like(PICTURE)), REQUEST)
    with pytest.raises(FramesRejected, match="4 frames instead of 5"):
        inspected(generation(PICTURE[:4]), REQUEST)
