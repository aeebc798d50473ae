"""Runs in the Python of torch-2.4.1-cu124: drives a backend through a scenario and writes what happened.

    python torch241_scenario.py BACKEND MODEL SCENARIO.json RESULT.json

Scenario and actions as in omni_scenario.py; `children` adds this process's children, `offload` what the
offloading of the transformers did in one generation.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from omni_scenario import generate


def children() -> list[str]:
    """Command lines of every process below this one; Python's own resource tracker holds no weights."""
    import psutil

    lines = [" ".join(child.cmdline()) for child in psutil.Process().children(recursive=True)]
    return [line for line in lines if "resource_tracker" not in line]


def break_decoder(backend: Any) -> None:
    """Let the next decoding fail without words, once."""
    engine = getattr(backend, "_engine", None)
    vae = (engine.executor.pipeline if engine else backend._pipeline).vae
    decode = vae.decode

    def fail(*args: Any, **kwargs: Any) -> Any:
        vae.decode = decode
        raise AssertionError("no decoder")

    vae.decode = fail


def main() -> None:
    from framekeeper.engine.backends.backend import Progress
    from framekeeper.engine.worker import make_backend

    name, model, scenario_path, result_path = sys.argv[1:]
    scenario = json.loads(Path(scenario_path).read_text())
    backend: Any = make_backend(name)
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
            case "children":
                results.append(children())
    backend.close()
    backend.close()
    Path(result_path).write_text(
        json.dumps({"facts": facts, "phases": phases, "results": results, "class": type(backend).__name__})
    )


if __name__ == "__main__":
    main()
