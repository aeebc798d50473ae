"""Asking a program of the host, such as nvidia-smi, without ever waiting longer than was said."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress


class NoAnswer(Exception):
    """It did not end in time."""


def ask(command: Sequence[str], seconds: float) -> tuple[int, str, str]:
    """Exit status, standard output and standard error. Raises OSError (no such program), NoAnswer.

    A program that is stuck in a driver cannot even be killed: it is left behind, and not waited for, as
    `subprocess.run` would.
    """
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        raise NoAnswer from None
    return process.returncode, out, err
