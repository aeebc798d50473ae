"""The scripts in bench/gpu as modules: they are scripts that import each other from their own directory."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

from system import PROJECT

GPU = PROJECT / "bench" / "gpu"


def script(name: str) -> ModuleType:
    """One of them by its name."""
    if str(GPU) not in sys.path:
        sys.path.append(str(GPU))
    return importlib.import_module(name)
