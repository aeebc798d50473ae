"""Progress from inside a denoising loop to the process that asked for the video.

One unix datagram socket serves both executors: with `multiprocess` the loop runs in another process, whose
only other way out is the finished result. Datagrams keep message borders, and a sender whose receiver is
gone gets an error at once instead of a signal.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec

PATH_VARIABLE = "FRAMEKEEPER_STEP_SOCKET"
SEND_SECONDS = 0.5
"""How long a full queue may hold up a denoising step before the report is dropped."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Base: `request` is the engine's id of one attempt."""

    request: str


class PhaseReport(Report, frozen=True, tag=True, kw_only=True):
    """A phase begins: text_encoding, denoising or decoding."""

    name: str


class StepReport(Report, frozen=True, tag=True, kw_only=True):
    """`step` of `steps` denoising steps are finished; the other fields as in `protocol.Step`."""

    step: int
    steps: int
    seconds: float
    memory_bytes: int
    expert: int | None


class EndReport(Report, frozen=True, tag=True, kw_only=True):
    """The loop's process is done with this request, however it ended.

    `step` steps were finished, `seconds` by phase, `expert_steps` counts finished steps by transformer,
    `error` is the type and words of the exception that ended it, None when none did. `finite` is False when
    the decoder gave a value that is not: 8-bit frames do not show it any more.
    """

    step: int
    seconds: dict[str, float]
    expert_steps: dict[int, int]
    peak_memory_bytes: int
    error: str | None = None
    finite: bool = True


AnyReport = PhaseReport | StepReport | EndReport
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(AnyReport).decode


class Sender:
    """The loop's end. Never raises and never blocks for longer than SEND_SECONDS."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.settimeout(SEND_SECONDS)

    def send(self, report: AnyReport) -> None:
        """Send, or drop when nobody listens: a video is worth more than its progress bar."""
        with contextlib.suppress(OSError):
            self._socket.sendto(_encode(report), self._path)


class Receiver:
    """The asking process's end: a socket in a private directory and a thread that reads it.

    `path` is what a Sender needs; `handle` is called on the thread, one report after the other.
    """

    def __init__(self, handle: Callable[[AnyReport], None]) -> None:
        self._handle = handle
        self._directory = tempfile.mkdtemp(prefix="framekeeper-")
        self.path = str(Path(self._directory, "steps"))
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self.path)
        self._thread = threading.Thread(target=self._read, name="step-reports", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while raw := self._socket.recv(65536):
            try:
                self._handle(_decode(raw))
            except Exception:
                # The thread must live: without it the queue fills up and every step waits for SEND_SECONDS.
                logging.getLogger(__name__).exception("a progress report was dropped")

    def close(self) -> None:
        """Stop the thread and remove the directory; harmless when repeated."""
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
                end.settimeout(SEND_SECONDS)
                end.sendto(b"", self.path)  # an empty datagram ends the loop
            self._thread.join(timeout=2)
        self._socket.close()
        shutil.rmtree(self._directory, ignore_errors=True)
