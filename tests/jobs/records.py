"""Records that tests begin with."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from framekeeper.jobs.engines import Engine, EngineState
from framekeeper.jobs.video import VideoRequest

ADMITS = {"size": "128x128", "num_frames": 49, "num_inference_steps": 50}
DEFAULTS = {
    "size": "64x64",
    "num_frames": 9,
    "fps": 8,
    "num_inference_steps": 6,
    "guidance_scale": 4.0,
    "guidance_scale_2": 3.0,
    "boundary_ratio": 0.875,
    "flow_shift": 5.0,
    "negative_prompt": None,
}


def engine(name: str = "host/0", *, model: str = "tiny", **changes: Any) -> Engine:
    """A ready engine with the limits above, but for `changes`."""
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    values: dict[str, Any] = {
        "id": name, "host": "host", "run_id": "run", "model": model, "profile": "cpu-tiny", "runtime": "cpu",
        "state": EngineState.READY, "phase": None, "detail": None, "admits": ADMITS, "defaults": DEFAULTS,
        "restarts": 0, "facts": None, "started_at": moment, "phase_since": moment, "ready_at": moment,
        "heartbeat_at": moment, "age_seconds": 0.5, "phase_seconds": 3.0,
    }  # fmt: skip
    return Engine(**{**values, **changes})


def request(**changes: Any) -> VideoRequest:
    """A small request, but for `changes`."""
    values: dict[str, Any] = {
        "prompt": "a cat", "negative_prompt": None, "width": 64, "height": 64, "num_frames": 9, "fps": 8,
        "num_inference_steps": 6, "guidance_scale": 4.0, "guidance_scale_2": 3.0, "boundary_ratio": 0.875,
        "flow_shift": 5.0, "seed": 1,
    }  # fmt: skip
    return VideoRequest(**{**values, **changes})
