"""A cancel that reaches the worker after its own look and before the backend knows the job."""

from __future__ import annotations

import asyncio
import socket
import threading
from pathlib import Path
from typing import Any

import msgspec

from faulty import REQUEST
from framekeeper.engine import protocol
from framekeeper.engine.backends.backend import GenerationCancelled, Progress, StepReport
from framekeeper.engine.channel import Channel
from framekeeper.engine.worker import Worker

ORDER = protocol.Generate(job="video_1", attempt=1, directory="/nowhere", **msgspec.structs.asdict(REQUEST))


class SlowToBegin:
    """A backend that knows its job only after the first cancel of it has come."""

    def __init__(self) -> None:
        self.ignored, self.heard = threading.Event(), threading.Event()
        self._job: str | None = None

    def generate(self, request: protocol.Generate, progress: Progress, picture: Any = None) -> Any:
        assert self.ignored.wait(10)
        self._job = request.job
        progress.step(StepReport(step=0, steps=10, seconds=0.0, memory_bytes=0, expert=None))
        if self.heard.wait(5):
            raise GenerationCancelled(1)
        raise RuntimeError("nobody said it again")

    def cancel(self, job: str) -> None:
        (self.heard if job == self._job else self.ignored).set()

    def healthy(self) -> bool:
        return True


async def test_cancel_that_comes_while_the_backend_begins_still_stops_the_job(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    parent = await Channel.over(ours, protocol.decode_from_child)
    worker = Worker(await Channel.over(theirs, protocol.decode_from_parent))
    worker._backend = SlowToBegin()  # type: ignore[assignment]  # what of a backend is asked here
    running = asyncio.create_task(worker.run())
    parent.send(ORDER)
    await asyncio.sleep(0.1)
    parent.send(protocol.Cancel(job=ORDER.job, attempt=1))
    said = []
    async with asyncio.timeout(20):
        while not isinstance(said[-1:] and said[-1], protocol.Cancelled | protocol.Failed):
            said.append(await parent.receive())
    parent.close()
    assert isinstance(said[-1], protocol.Cancelled)
    assert await running == 1
