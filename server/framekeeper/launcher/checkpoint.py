"""Making the small checkpoint with the engine's Python: this environment has no torch."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from framekeeper.checkpoint import tiny
from framekeeper.launcher.preflight import CannotRun
from framekeeper.settings import Settings

RUNTIME = "omni-0.30-cpu"
#: A model directory of such a name that does not exist is made; any other has to be brought.
NAMES = {f"wan2.2-{kind}-tiny": kind for kind in tiny.KINDS}


class CheckpointFailed(Exception):
    """The checkpoint could not be made; the message is the engine's."""


def engine_python(settings: Settings, runtime: str = RUNTIME) -> Path:
    """The engine's interpreter. Raises CannotRun with the command that installs it."""
    python = (settings.engine_python or settings.runtimes / runtime / "bin" / "python").absolute()
    if os.access(python, os.X_OK):
        return python
    if settings.engine_python:
        raise CannotRun(f"FRAMEKEEPER_ENGINE_PYTHON={settings.engine_python}: there is no such program")
    target = settings.runtimes / runtime
    command = f"python docker/runtimes/install.py {runtime} --into {target}"
    raise CannotRun(
        f"runtime {runtime} is not installed ({python} is missing): run `make runtime`, or `{command}`"
    )


def is_wanted(model: Path) -> bool:
    """Whether `model` is the small checkpoint's place and holds none of this version."""
    kind = NAMES.get(model.name)
    if kind is None or tiny.is_current(model, kind):
        return False
    # A full directory without our mark is somebody's own model.
    return tiny.is_ours(model) or _is_empty(model)


def _is_empty(directory: Path) -> bool:
    try:
        return not any(directory.iterdir())
    except PermissionError:  # whatever is in there is not for us to replace
        return False
    except OSError:
        return True


def make(python: Path, directory: Path, stopping: Callable[[], bool] = lambda: False) -> None:
    """Write the checkpoint; an unfinished one never appears under its name. Raises CheckpointFailed."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    kind = NAMES.get(directory.name, "t2v")
    command: list[str | Path] = [python, "-m", "framekeeper.checkpoint.tiny", directory.absolute(), kind]
    # Output goes through a pipe that is read at the end: it is a few lines.
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, process_group=0
    ) as process:
        while True:
            with suppress(subprocess.TimeoutExpired):
                output, _ = process.communicate(timeout=0.2)
                break
            if stopping():
                process.kill()
    if process.returncode != 0 and not stopping():
        lines = output.decode(errors="replace").strip().splitlines() or ["it said nothing"]
        raise CheckpointFailed(f"the small checkpoint could not be made: {lines[-1]}")
