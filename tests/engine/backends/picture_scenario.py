"""Runs in an engine's Python: makes videos with and without pictures and writes what came out.

    python picture_scenario.py BACKEND MODEL OPTIONS.json RESULT.json

OPTIONS.json holds the options of a Load.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

REQUEST = {
    "job": "job",
    "attempt": 1,
    "prompt": "a cat walks on the grass",
    "negative_prompt": None,
    "width": 64,
    "height": 64,
    "num_frames": 9,
    "fps": 8,
    "num_inference_steps": 4,
    "guidance_scale": 3.5,
    "guidance_scale_2": 3.5,
    "boundary_ratio": None,
    "flow_shift": 3.0,
    "seed": 1,
    "directory": "",
}
COLOURS: dict[str, tuple[int, int, int] | None] = {
    "none": None,
    "red": (220, 30, 30),
    "blue": (30, 30, 220),
    "red again": (220, 30, 30),
    "none again": None,
}


def generate(backend: Any, name: str, boundary: float | None) -> dict[str, Any]:
    import numpy as np

    from framekeeper.engine.backends.backend import Progress, RequestRefused
    from framekeeper.engine.protocol import Generate

    phases: list[str] = []
    steps: list[int] = []
    colour = COLOURS[name]
    picture = None if colour is None else np.full((64, 64, 3), colour, np.uint8)
    request = Generate(**{**REQUEST, "job": name.replace(" ", "-"), "boundary_ratio": boundary})
    progress = Progress(phase=phases.append, step=lambda report: steps.append(report.step))
    try:
        made = backend.generate(request, progress, picture)
    except RequestRefused as refused:
        return {"outcome": "refused", "param": refused.param, "message": str(refused)}
    frames = made.frames.astype(np.float32) / (255 if made.frames.dtype == np.uint8 else 1)
    return {
        "outcome": "done",
        "shape": list(frames.shape),
        "finite": made.finite and bool(np.isfinite(frames).all()),
        "deviation": float(frames.std()),
        "first_frame": frames[0].tolist(),
        "phases": phases,
        "steps": steps,
        "experts": sorted(made.expert_steps),
    }


def main() -> None:
    from framekeeper.engine.backends.backend import Progress
    from framekeeper.engine.worker import make_backend

    name, model, options_path, result_path = sys.argv[1:]
    options = json.loads(Path(options_path).read_text())
    backend: Any = make_backend(name)
    facts = backend.load(model, options, Progress(phase=lambda _: None, step=lambda _: None))
    made = {colour: generate(backend, colour, options["boundary_ratio"]) for colour in COLOURS}
    backend.close()
    Path(result_path).write_text(json.dumps({"facts": facts, "made": made}))


if __name__ == "__main__":
    main()
