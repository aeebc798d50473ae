"""The profiles that the bench runs: h200 and variants, at 832x480 and few steps, on its own checkpoint."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import yaml

PROJECT = Path(__file__).resolve().parent.parent.parent

#: At shift 3 the second of two steps starts at noise 0.75, below the boundary 0.875: both experts run.
SMALL: dict[str, Any] = {
    "extends": "h200",
    "defaults": {"size": "832x480", "num_inference_steps": 6, "flow_shift": 3.0},
    "admits": {"size": "832x480"},
    "warm_up": {"num_inference_steps": 2},
}

VARIANTS: dict[str, dict[str, Any]] = {
    "bench-compiled": {},
    "bench-eager": {"compile": "off", "fallbacks": []},
    "bench-async": {"compile": "off", "offload": "layerwise", "offload_prefetch": "async", "fallbacks": []},
    "bench-sync": {"compile": "off", "offload": "layerwise", "offload_prefetch": "sync", "fallbacks": []},
}


def write(directory: Path, model: Path, base: str = "h200") -> Path:
    """All profiles of the project and those of the bench in `directory`; returns it."""
    shutil.copytree(PROJECT / "configs" / "profiles", directory, dirs_exist_ok=True)
    for name, changes in VARIANTS.items():
        small = SMALL if base == "h200" else {"extends": base}
        if base != "h200":  # a rehearsal on a CPU
            changes = {key: value for key, value in changes.items() if key != "compile"}  # noqa: PLW2901
        (directory / f"{name}.yaml").write_text(yaml.safe_dump(small | changes | {"model": str(model)}))
    return directory
