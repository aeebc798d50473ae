"""The engine of the soak: its profile, and the faults that keep coming."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

#: The largest job; the warm-up is that large, too.
SIDE, FRAMES, STEPS = 128, 25, 12
#: Seconds of a denoising step, so that a job takes about half a second.
STEP_SECONDS = 0.04
ILLEGAL_ACCESS = "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"
LAUNCH_FAILURE = "RuntimeError: CUDA error: unspecified launch failure"
OUT_OF_MEMORY = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 640.00 MiB. GPU 0 has a total capacity of "
    "23.52 GiB of which 101.00 MiB is free."
)
UNHEARD_OF = "RuntimeError: the flux capacitor is empty"

#: What happens at a place, and how probable it is there: a start passes load and warm-up once, a job every
#: step and the decoder.
FAULTS: dict[str, list[tuple[float, dict[str, Any]]]] = {
    "load": [
        (0.02, {"what": "raise", "text": UNHEARD_OF}),
        (0.02, {"what": "hang"}),
        (0.02, {"what": "die", "signal": 11}),
    ],
    "warm_up": [
        (0.02, {"what": "raise", "text": OUT_OF_MEMORY}),
        (0.02, {"what": "hang"}),
        (0.02, {"what": "exit", "code": 3}),
        (0.05, {"what": "ignore_sigterm"}),
        (0.05, {"what": "child"}),
    ],
    "step": [
        (0.001, {"what": "raise", "text": ILLEGAL_ACCESS}),
        (0.001, {"what": "raise", "text": LAUNCH_FAILURE}),
        (0.001, {"what": "raise", "text": UNHEARD_OF}),
        (0.0005, {"what": "raise", "text": OUT_OF_MEMORY}),
        (0.002, {"what": "hang"}),
        (0.001, {"what": "die", "signal": 11}),
        (0.001, {"what": "die", "signal": 9}),
        (0.0005, {"what": "die", "signal": 6}),
        (0.0005, {"what": "exit", "code": 1}),
        (0.002, {"what": "child"}),
        (0.002, {"what": "refuse", "text": "this prompt cannot be encoded"}),
        (0.001, {"what": "flood", "lines": 5000}),
    ],
    "decode": [
        (0.005, {"what": "nan"}),
        (0.005, {"what": "black"}),
        (0.003, {"what": "frozen"}),
        (0.005, {"what": "few_frames"}),
        (0.004, {"what": "hang"}),
        (0.004, {"what": "die", "signal": 9}),
        (0.004, {"what": "raise", "text": LAUNCH_FAILURE}),
    ],
}

PROFILE = """
serves: test-model
runtime: omni-0.30-cpu
backend: fault
model: {script}
devices: {{count: 1, kind: cpu}}
vae: {{tiling: false}}
defaults:
  {{size: 64x64, num_frames: 9, fps: 8, num_inference_steps: 8, guidance_scale: 4.0, guidance_scale_2: 3.0,
   boundary_ratio: 0.875, flow_shift: 5.0}}
admits: {{size: {side}x{side}, num_frames: {frames}, num_inference_steps: {steps}}}
warm_up: {{num_inference_steps: 2, deadline_seconds: 6}}
deadlines: {{load_seconds: 12, step_seconds: 2, decode_seconds: 3, job_seconds: 12}}
fallbacks:
  - {{name: tiling, change: {{vae: {{tiling: true}}}}}}
  - {{name: slicing, change: {{vae: {{slicing: true}}}}}}
  - {{name: smaller, change: {{admits: {{size: 96x96}}}}}}
"""


def write_profile(directory: Path, seed: int) -> Path:
    """Write the profile and its script; returns the profile's path."""
    directory.mkdir(parents=True, exist_ok=True)
    script = directory / "soak.json"
    script.write_text(json.dumps({"step_seconds": STEP_SECONDS, "seed": seed, "faults": _faults()}))
    profile = directory / "soak.yaml"
    profile.write_text(PROFILE.format(script=script, side=SIDE, frames=FRAMES, steps=STEPS))
    return profile


def end_faults(directory: Path) -> None:
    """Processes that are started from now on have no fault."""
    (directory / "soak.json").write_text(json.dumps({"step_seconds": STEP_SECONDS}))


def _faults() -> list[dict[str, Any]]:
    always = {"step": None, "times": None}
    return [
        {"at": place, "probability": probability, **always, **fault}
        for place, faults in FAULTS.items()
        for probability, fault in faults
    ]
