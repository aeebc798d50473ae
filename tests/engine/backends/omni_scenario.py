"""Runs in the engine's Python: drives the vllm-omni backend through a scenario and writes what happened.

    python omni_scenario.py MODEL SCENARIO.json RESULT.json

A scenario is {"options": {...}, "actions": [...]}; an action is {"do": "generate" | "cancel" | "healthy" |
"break_decoder" | "drop_receiver", ...}. "generate" takes `request` (fields that differ from the default),
`cancel_at_step`, `cancel_at_phase` and `kill_ranks_at_step`.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

REQUEST = {
    "job": "job",
    "attempt": 1,
    "prompt": "a cat walks on the grass",
    "negative_prompt": "blurry",
    "width": 64,
    "height": 64,
    "num_frames": 9,
    "fps": 8,
    "num_inference_steps": 4,
    "guidance_scale": 4.0,
    "guidance_scale_2": 3.0,
    "boundary_ratio": 0.875,
    "flow_shift": 3.0,
    "seed": 1,
    "directory": "",
}


def kill_ranks() -> None:
    """SIGKILL to every process that the executor spawned."""
    import psutil

    for child in psutil.Process().children():
        if "resource_tracker" not in " ".join(child.cmdline()):
            child.kill()


def break_decoder(backend: Any) -> None:
    """Let the next decoding of an engine in this process fail without words, once."""
    vae = backend._engine.executor.driver_worker.worker.model_runner.pipeline.vae
    decode = vae.decode

    def fail(*args: Any, **kwargs: Any) -> Any:
        vae.decode = decode
        raise AssertionError

    vae.decode = fail


def generate(backend: Any, action: dict[str, Any]) -> dict[str, Any]:
    import numpy as np

    from framekeeper.engine.backends.backend import GenerationCancelled, Progress, RequestRefused
    from framekeeper.engine.protocol import Generate

    request = Generate(**{**REQUEST, **action.get("request", {})})
    phases: list[str] = []
    steps: list[Any] = []

    def phase(name: str) -> None:
        phases.append(name)
        if action.get("cancel_at_phase") == name:
            backend.cancel(request.job)

    def step(report: Any) -> None:
        steps.append(report)
        if action.get("cancel_at_step") == report.step:
            backend.cancel(request.job)
        if action.get("kill_ranks_at_step") == report.step:
            kill_ranks()

    seen: dict[str, Any] = {"phases": phases}
    try:
        made = backend.generate(request, Progress(phase=phase, step=step))
    except GenerationCancelled as cancelled:
        seen |= {"outcome": "cancelled", "step": cancelled.step}
    except RequestRefused as refused:
        seen |= {"outcome": "refused", "message": str(refused), "param": refused.param}
    except Exception as error:
        seen |= {"outcome": "failed", "message": repr(error)}
    else:
        frames = made.frames.astype(np.float32) / (255 if made.frames.dtype == np.uint8 else 1)
        seen |= {
            "outcome": "done",
            "shape": list(frames.shape),
            "dtype": str(made.frames.dtype),
            "finite": made.finite,
            "deviation": float(frames.std()),
            "inside": float(((frames > 0.01) & (frames < 0.99)).mean()),
            "moves": float(np.abs(np.diff(frames, axis=0)).mean()),
            "sha256": hashlib.sha256(frames.tobytes()).hexdigest(),
            "seconds": made.seconds,
            "expert_steps": {str(expert): count for expert, count in made.expert_steps.items()},
            "peak_memory_bytes": made.peak_memory_bytes,
        }
    seen["steps"] = [
        [report.step, report.steps, report.seconds, report.memory_bytes, report.expert] for report in steps
    ]
    return seen


def main() -> None:
    from framekeeper.engine.backends.backend import Progress
    from framekeeper.engine.backends.vllm_omni import VllmOmniBackend

    model, scenario_path, result_path = sys.argv[1:]
    scenario = json.loads(Path(scenario_path).read_text())
    backend = VllmOmniBackend()
    phases: list[str] = []
    facts = backend.load(
        model, scenario["options"], Progress(phase=phases.append, step=lambda report: phases.append("step"))
    )
    results: list[Any] = []
    for action in scenario["actions"]:
        match action["do"]:
            case "generate":
                results.append(generate(backend, action))
            case "cancel":
                results.append(backend.cancel(action["job"]))
            case "healthy":
                results.append(backend.healthy())
            case "break_decoder":
                results.append(break_decoder(backend))
            case "drop_receiver":
                results.append(backend._receiver.close())
    backend.close()
    backend.close()
    Path(result_path).write_text(json.dumps({"facts": facts, "phases": phases, "results": results}))


if __name__ == "__main__":
    main()
