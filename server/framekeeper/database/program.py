"""A program that is run to its end, or ended with all it has started."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from typing import Any

#: What is left of a killed program's output is waited for so long; one in the kernel's hands does not go.
KILL_SECONDS = 5.0


def run_within(seconds: float, command: list[Any], **how: Any) -> tuple[int, str]:
    """Run it; its exit status, and its output and errors as one text. `how` is as for subprocess.Popen.

    Raises TimeoutError when it was not done in time, OSError when it cannot be started.
    """
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,  # so that all of it can be ended
        **how,
    )
    try:
        output, _ = process.communicate(timeout=seconds)
    except BaseException as error:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=KILL_SECONDS)
        if isinstance(error, subprocess.TimeoutExpired):
            raise TimeoutError(f"{command[0]} was not done within {seconds:g} s") from None
        raise
    return process.returncode, output
