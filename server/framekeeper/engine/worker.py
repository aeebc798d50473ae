"""The disposable process that owns a device group: `python -m framekeeper.engine.worker`.

It speaks `protocol.py` over the descriptor in FRAMEKEEPER_CHANNEL_FD. The supervisor has set everything else
in its environment before this module is imported, so before anything imports torch. It decides nothing: what
to load and what to make is said to it, what happened is reported.

Three threads: the main one listens, one runs the backend, one encodes finished frames so that the next job
can start. An executor with processes of its own imports this module again in each of them (as
`__mp_main__`), which is why the parent-death signal is set at import.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import multiprocessing
import os
import shutil
import signal
import socket
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from framekeeper.engine import protocol
from framekeeper.engine.backends.backend import (
    Backend,
    Generation,
    GenerationCancelled,
    Progress,
    RequestRefused,
    StepReport,
)
from framekeeper.engine.channel import Channel
from framekeeper.engine.frames import FramesRejected, inspected
from framekeeper.engine.parent_death import die_with_parent
from framekeeper.engine.picture import drawn, fitted
from framekeeper.engine.publish import Published, publish
from framekeeper.engine.torch_241 import versions
from framekeeper.engine.warden import descendants
from framekeeper.media.inspect import Inspection

if TYPE_CHECKING:
    from collections.abc import Callable

    from framekeeper.engine.backends.backend import Picture

# SIGUSR1 shows where every thread is; the supervisor asks for it before it ends a hung engine.
faulthandler.enable()
faulthandler.register(signal.SIGUSR1, all_threads=True)

_spawned_by = multiprocessing.parent_process()
if _spawned_by is not None:
    assert _spawned_by.pid is not None
    die_with_parent(_spawned_by.pid)


def make_backend(name: str) -> Backend:
    """The backend of that name. Raises ValueError on an unknown one."""
    if name == "vllm_omni":
        # Only when asked for: it imports torch, which another backend may have to prepare for.
        if versions.installed("vllm-omni") == "0.14.0":
            from framekeeper.engine.backends.vllm_omni_014 import VllmOmni014Backend  # noqa: PLC0415

            return VllmOmni014Backend()
        from framekeeper.engine.backends.vllm_omni import VllmOmniBackend  # noqa: PLC0415

        return VllmOmniBackend()
    if name == "diffusers":
        from framekeeper.engine.backends.diffusers import DiffusersBackend  # noqa: PLC0415

        return DiffusersBackend()
    if name == "fault":
        from framekeeper.engine.backends.fault import FaultBackend  # noqa: PLC0415

        return FaultBackend()
    raise ValueError(f"unknown backend {name!r}")


class Worker:
    """One backend, driven by messages."""

    def __init__(self, channel: Channel[protocol.FromParent]) -> None:
        self._channel = channel
        self._loop = asyncio.get_running_loop()
        self._backend: Backend | None = None
        self._engine = ThreadPoolExecutor(1, thread_name_prefix="engine")
        self._encoder = ThreadPoolExecutor(1, thread_name_prefix="encoder")
        self._encoding = asyncio.Lock()
        self._cancelled: set[tuple[str, int]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._phase: protocol.PhaseName = "importing"
        self._allocated = 0

    async def run(self) -> int:
        """Serve until the supervisor says so (0) or is gone (1)."""
        while True:
            message = await self._channel.receive()
            match message:
                case None:
                    return 1
                case protocol.Shutdown():
                    await self._close()
                    return 0
                case protocol.Load():
                    self._begin(self._load(message))
                case protocol.WarmUp():
                    self._begin(self._warm_up(message))
                case protocol.Generate():
                    self._begin(self._make(message))
                case protocol.Cancel():
                    self._cancelled.add((message.job, message.attempt))
                    if self._backend is not None:
                        self._backend.cancel(message.job)

    def _begin(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _load(self, message: protocol.Load) -> None:
        try:
            self._backend = make_backend(message.backend)
            facts = await self._on_engine(
                self._backend.load, message.model, message.options, self._progress(None, 0)
            )
        except Exception as error:
            self._send_failure("engine", error, healthy=False)
            return
        self._channel.send(protocol.Loaded(facts=facts))

    async def _warm_up(self, message: protocol.WarmUp) -> None:
        request = message.request
        started = time.monotonic()
        self._channel.send(protocol.Phase(name="warming"))
        picture = drawn(request.width, request.height) if message.picture else None
        try:
            generation = await self._generate(request, picture, report=False)
            published = await self._publish(request, generation, decode=True)
            _check_experts(generation, message.experts)
        except FramesRejected as error:
            self._send_failure("frames", error, healthy=False)
            return
        except Exception as error:
            kind: Any = "storage" if isinstance(error, OSError) else "engine"
            self._send_failure(kind, error, healthy=False)
            return
        finally:
            await asyncio.get_running_loop().run_in_executor(None, _remove, request)
        facts = _facts(generation, published.inspection)
        self._channel.send(
            protocol.Ready(
                facts=facts | {"warm_up_seconds": time.monotonic() - started, "decoded": published.decoded}
            )
        )

    async def _make(self, request: protocol.Generate) -> None:
        try:
            picture = None
            if request.image is not None:
                picture = await self._loop.run_in_executor(
                    None, fitted, Path(request.image), request.width, request.height
                )
            generation = await self._generate(request, picture, report=True)
        except GenerationCancelled as cancelled:
            self._channel.send(
                protocol.Cancelled(job=request.job, attempt=request.attempt, step=cancelled.step)
            )
            return
        except RequestRefused as refused:
            self._channel.send(
                protocol.Refused(
                    job=request.job, attempt=request.attempt, message=str(refused), param=refused.param
                )
            )
            return
        except Exception as error:
            self._send_failure("engine", error, healthy=await self._healthy(), request=request)
            return
        async with self._encoding:  # frames of two videos at most are held
            self._phase = "encoding"
            self._channel.send(protocol.Phase(name="encoding", job=request.job, attempt=request.attempt))
            await self._finish(request, generation)

    async def _finish(self, request: protocol.Generate, generation: Generation) -> None:
        try:
            published = await self._publish(request, generation, decode=False)
        except FramesRejected as error:
            self._send_failure("frames", error, healthy=False, request=request)
            return
        except Exception as error:
            self._send_failure("storage", error, healthy=True, request=request)
            return
        self._channel.send(
            protocol.Done(
                job=request.job,
                attempt=request.attempt,
                video=published.video,
                thumbnail=published.thumbnail,
                bytes=published.bytes,
                facts=_facts(generation, published.inspection)
                | {"encode_seconds": published.seconds, "memory": self._memory()},
            )
        )

    async def _generate(
        self, request: protocol.Generate, picture: Picture | None, *, report: bool
    ) -> Generation:
        if self._backend is None:
            raise RuntimeError("asked for a video before the model was loaded")
        if (request.job, request.attempt) in self._cancelled:
            raise GenerationCancelled(0)
        progress = self._progress(request.job if report else None, request.attempt)
        try:
            generation: Generation = await self._on_engine(self._backend.generate, request, progress, picture)
            return generation
        finally:
            self._cancelled.discard((request.job, request.attempt))

    async def _publish(
        self, request: protocol.Generate, generation: Generation, *, decode: bool
    ) -> Published:
        def work() -> Published:
            inspection = inspected(generation, request)
            published = publish(request, generation.frames, inspection, decode=decode)
            if published.decoded and published.decoded["fault"]:
                raise FramesRejected(f"in the decoded file, {published.decoded['fault']}")
            return published

        return await self._loop.run_in_executor(self._encoder, work)

    def _progress(self, job: str | None, attempt: int) -> Progress:
        def phase(name: protocol.PhaseName) -> None:
            self._phase = name
            self._from_thread(protocol.Phase(name=name, job=job, attempt=attempt))

        def step(report: StepReport) -> None:
            if report.step == 0:
                self._allocated = report.memory_bytes
                if job is not None and self._backend is not None and (job, attempt) in self._cancelled:
                    # It came after our look and before the backend knew the job.
                    self._loop.call_soon_threadsafe(self._backend.cancel, job)
            self._from_thread(
                protocol.Step(
                    job=job or "",
                    attempt=attempt,
                    step=report.step,
                    steps=report.steps,
                    seconds=report.seconds,
                    memory_bytes=report.memory_bytes,
                    expert=report.expert,
                )
            )

        return Progress(phase=phase, step=step)

    def _from_thread(self, message: protocol.Message) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens any more
            self._loop.call_soon_threadsafe(self._channel.send, message)

    def _send_failure(
        self, kind: Any, error: Exception, *, healthy: bool, request: protocol.Generate | None = None
    ) -> None:
        traceback.print_exception(error)
        sys.stderr.flush()
        self._channel.send(
            protocol.Failed(
                kind=kind,
                phase=self._phase,
                message=f"{type(error).__name__}: {error}" if kind != "frames" else str(error),
                healthy=healthy,
                job=request.job if request else None,
                attempt=request.attempt if request else 0,
                trace="".join(traceback.format_exception(error))[-20_000:],
            )
        )

    async def _healthy(self) -> bool:
        """Whether the backend can go on after a failed generation; one that cannot tell cannot."""
        try:
            return self._backend is not None and bool(await self._on_engine(self._backend.healthy))
        except Exception:
            return False

    async def _on_engine(self, work: Callable[..., Any], *arguments: Any) -> Any:
        return await self._loop.run_in_executor(self._engine, work, *arguments)

    def _memory(self) -> dict[str, int]:
        """Bytes that this worker and its executor's processes hold, and those on the device between jobs."""
        return {
            "resident_bytes": resident_bytes([os.getpid(), *descendants(os.getpid())]),
            "allocated_bytes": self._allocated,
        }

    async def _close(self) -> None:
        if self._backend is not None:
            with contextlib.suppress(Exception):
                await self._on_engine(self._backend.close)


def resident_bytes(pids: list[int]) -> int:
    """Resident set of these processes together, from /proc; one that has ended counts nothing."""
    pages = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _check_experts(generation: Generation, experts: int) -> None:
    """Raise when a transformer of the model had no step: then the warm-up has proved nothing about it."""
    idle = [expert for expert in range(experts) if not generation.expert_steps.get(expert)]
    if idle:
        raise RuntimeError(
            f"warm_up: transformer {idle[0] + 1} of {experts} ran no denoising step "
            f"(steps by transformer: {generation.expert_steps}); raise warm_up.num_inference_steps"
        )


def _facts(generation: Generation, inspection: Inspection) -> dict[str, Any]:
    return {
        "seconds": generation.seconds,
        "expert_steps": {str(expert): steps for expert, steps in generation.expert_steps.items()},
        "peak_memory_bytes": generation.peak_memory_bytes,
        "inspection": inspection.facts(),
    }


def _remove(request: protocol.Generate) -> None:
    shutil.rmtree(request.directory, ignore_errors=True)


async def serve(fd: int) -> int:
    """Run a worker on an open socket."""
    channel = await Channel.over(socket.socket(fileno=fd), protocol.decode_from_parent)
    code = await Worker(channel).run()
    await channel.drain()
    return code


def main() -> None:
    """Entry point; ends the process without waiting for threads that may hang in a device."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the launcher's business
    code = asyncio.run(serve(int(os.environ["FRAMEKEEPER_CHANNEL_FD"])))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
