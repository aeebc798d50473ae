"""Runs in the engine's Python with a launch's environment: makes videos and tells what it saw.

    python launch_scenario.py LAUNCH.json RESULT.json

The launch is {"model", "options", "requests"}; each request is a `protocol.Generate` as a mapping. With
options null only torch.compile is tried.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any


def compiler_calls() -> int:
    """How often torch.compile calls its compiler for two calls of one function."""
    import torch

    calls = 0

    def compiler(graph: Any, _inputs: Any) -> Any:
        nonlocal calls
        calls += 1
        return graph.forward

    compiled = torch.compile(lambda x: x * 2 + 1, backend=compiler)
    compiled(torch.ones(2))
    compiled(torch.ones(2))
    return calls


def make(launch: dict[str, Any]) -> dict[str, Any]:
    import psutil
    import torch

    from framekeeper.engine.backends.backend import Progress
    from framekeeper.engine.backends.vllm_omni import VllmOmniBackend
    from framekeeper.engine.protocol import Generate

    progress = Progress(phase=lambda _name: None, step=lambda _report: None)
    backend = VllmOmniBackend()
    backend.load(launch["model"], launch["options"], progress)
    videos = []
    for request in launch["requests"]:
        made = backend.generate(Generate(**request), progress)
        frames = made.frames
        videos.append(
            {
                "shape": list(frames.shape),
                "experts": {str(key): value for key, value in made.expert_steps.items()},
                "finite": bool((abs(frames) < float("inf")).all()),
                "varies": bool(frames.std() > 0),
            }
        )
    # Python's own resource tracker holds no device and no weights.
    lines = [" ".join(child.cmdline()) for child in psutil.Process().children(recursive=True)]
    children = [line for line in lines if "multiprocessing.resource_tracker" not in line]
    frames_compiled = torch._dynamo.utils.counters["frames"]["total"]
    backend.close()
    return {"videos": videos, "children": children, "frames_compiled": frames_compiled}


def main(launch_file: Path, result_file: Path) -> None:
    launch = json.loads(launch_file.read_text())
    result = {"environment": dict(os.environ), "compiler_calls": compiler_calls()}
    if launch["options"] is not None:
        result |= make(launch)
    result_file.write_text(json.dumps(result))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
