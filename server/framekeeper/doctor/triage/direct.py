"""A backend called directly, in the engine's Python: no worker, no protocol, no encoding.

    python -m framekeeper.doctor.triage.direct JOB.json RESULT.json

JOB.json holds backend, model, options, experts, picture and request. RESULT.json is written anew at every
phase: {"phase": …, "passed": null | true | false, "kind": "engine" | "frames", "message": …}. Exit status
0 or 1.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

from framekeeper.engine.backends.backend import Generation, Progress
from framekeeper.engine.frames import FramesRejected, inspected
from framekeeper.engine.picture import drawn
from framekeeper.engine.protocol import Generate
from framekeeper.engine.worker import make_backend


def main(job_file: Path, result_file: Path) -> int:
    """Make one video with one backend; returns the exit status."""
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    job = json.loads(job_file.read_text(encoding="utf-8"))
    request = Generate(**job["request"])
    result: dict[str, Any] = {"phase": "importing", "passed": None}

    def tell(**changes: Any) -> None:
        result.update(changes)
        part = result_file.with_suffix(".part")
        part.write_text(json.dumps(result), encoding="utf-8")
        part.replace(result_file)

    progress = Progress(phase=lambda name: tell(phase=name), step=lambda _: None)
    try:
        backend = make_backend(job["backend"])
        backend.load(job["model"], job["options"], progress)
        picture = drawn(request.width, request.height) if job["picture"] else None
        _look(backend.generate(request, progress, picture), request, job["experts"])
    except FramesRejected as error:
        tell(passed=False, kind="frames", message=str(error))
        return 1
    except Exception as error:
        traceback.print_exception(error)
        tell(passed=False, kind="engine", message=f"{type(error).__name__}: {error}")
        return 1
    tell(passed=True)
    backend.close()
    return 0


def _look(generation: Generation, request: Generate, experts: int) -> None:
    """Raise FramesRejected where the frames are no video of all experts."""
    inspected(generation, request)
    idle = [expert for expert in range(experts) if not generation.expert_steps.get(expert)]
    if idle:
        raise FramesRejected(f"transformer {idle[0] + 1} of {experts} ran no denoising step")


if __name__ == "__main__":
    status = main(Path(sys.argv[1]), Path(sys.argv[2]))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # without waiting for threads that may hang in a device
