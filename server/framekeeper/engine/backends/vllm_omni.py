"""The vllm-omni backend: stock `DiffusionEngine` and `Wan22Pipeline` of vllm-omni 0.30, without its server.

Runs in the worker process and drives a GPU and a CPU alike; what differs on a CPU is in cpu_platform.
Progress and cancellation come from the worker extension in denoising.py, which runs in this process with
the executor `in_process` and in spawned ones with `multiprocess`.
"""

# ruff: noqa: PLC0415  What is imported late takes seconds and opens the device; `load` reports it as a phase.

from __future__ import annotations

import asyncio
import multiprocessing
import os
import threading
import time
from importlib import metadata
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

from framekeeper.engine.backends import report_socket
from framekeeper.engine.backends.backend import (
    Generation,
    GenerationCancelled,
    Progress,
    RequestRefused,
    StepReport,
)
from framekeeper.engine.backends.omni_arguments import engine_arguments
from framekeeper.engine.backends.refusals import refuse_picture

if TYPE_CHECKING:
    from framekeeper.engine.backends.backend import Picture
    from framekeeper.engine.protocol import Generate, PhaseName

END_SECONDS = 5.0
"""How long the last report may lag behind the result; it was sent before it."""

FAILURE_SECONDS = 0.5
"""The same when the engine failed and there may be no report at all."""

HEALTH_SECONDS = 30.0
"""How long a device may take to answer before it counts as gone (multiprocess executor only)."""


class _Running:
    """One attempt in progress: where its reports go and what is known of it so far."""

    def __init__(self, request: Generate, progress: Progress) -> None:
        self.job = request.job
        # Unique per attempt and per process: the engine refuses an id that it has seen and not forgotten.
        self.id = f"{request.job}-{request.attempt}-{uuid4().hex[:8]}"
        self.progress = progress
        self.cancelled = False
        self.step = 0
        self.end: report_socket.EndReport | None = None
        self.ended = threading.Event()


#: What `denoising.ObservedWorker.describe` tells of the loaded model.
DESCRIBED = ("device_name", "memory_bytes", "experts", "compiled_modules", "pictures")


class VllmOmniBackend:
    """Implements `backend.Backend`; see there for the meaning and the errors of each method."""

    def __init__(self) -> None:
        self._engine: Any = None
        self._runner: asyncio.Runner | None = None
        self._receiver: report_socket.Receiver | None = None
        self._running: _Running | None = None
        self._pictures = "none"
        self._lock = threading.Lock()

    def load(self, model: str, options: dict[str, Any], progress: Progress) -> dict[str, Any]:
        """Also raises ValueError for wrong options, before anything heavy is imported."""
        arguments = engine_arguments(model, options)
        device, devices = str(options["device"]), int(options["devices"])
        progress.phase("importing")
        began = time.monotonic()
        self._receiver = report_socket.Receiver(self._receive)
        # Inherited by the processes that an executor spawns; read by cpu_platform and denoising.py.
        os.environ["FRAMEKEEPER_DEVICE"] = device
        os.environ["FRAMEKEEPER_CPU_DEVICES"] = str(devices)
        os.environ[report_socket.PATH_VARIABLE] = self._receiver.path
        # The multiprocess executor makes its events before it sets this itself, and the two must agree.
        multiprocessing.set_start_method("spawn", force=True)
        _prepare_libraries(device)
        imported = time.monotonic()
        progress.phase("loading")
        self._engine = _make_engine(arguments)
        loaded = time.monotonic()
        # The second half of upstream's `DiffusionEngine.make_engine`; taken apart to report the phase.
        progress.phase("dummy_run")
        self._engine.run_startup_warmup()
        self._runner = asyncio.Runner()
        finished = time.monotonic()
        device_facts = self._engine.collective_rpc("describe", unique_reply_rank=0)
        self._pictures = device_facts["pictures"]
        return {
            # By name: the multiprocess executor adds a key of its own to a mapping that it returns.
            **{name: device_facts[name] for name in DESCRIBED},
            "versions": {name: metadata.version(name) for name in ("torch", "vllm", "vllm-omni")},
            "devices": devices,
            "import_seconds": round(imported - began, 3),
            "load_seconds": round(loaded - imported, 3),
            "dummy_run_seconds": round(finished - loaded, 3),
        }

    def generate(self, request: Generate, progress: Progress, picture: Picture | None = None) -> Generation:
        """See `backend.Backend`; the request's own values go to the pipeline unchanged."""
        from vllm_omni.diffusion.data import DiffusionRequestAbortedError
        from vllm_omni.errors import OmniClientError

        assert self._runner is not None, "load comes first"
        # Upstream ignores a picture that it cannot use, and fails without one in words for developers.
        refuse_picture(self._pictures, given=picture is not None)
        began = time.monotonic()
        running = _Running(request, progress)
        with self._lock:
            self._running = running
        try:
            output = self._runner.run(self._consume(_engine_request(request, running.id, picture)))
            running.ended.wait(END_SECONDS)
            if running.end and running.end.error:
                # An exception without words reaches us as an output without frames.
                raise RuntimeError(running.end.error)
            return _generation(output, running, time.monotonic() - began)
        except DiffusionRequestAbortedError:
            running.ended.wait(END_SECONDS)
            raise GenerationCancelled(running.end.step if running.end else running.step) from None
        except OmniClientError as error:
            # denoising.refuse_wrong names the field in the error's type; upstream's own says no field.
            field = error.error_type if error.error_type in type(request).__struct_fields__ else None
            raise RequestRefused(error.message, field) from None
        except Exception as error:
            # A worker process that was killed sends no last report, so this wait is short.
            if running.ended.wait(FAILURE_SECONDS) and running.end and running.end.error:
                raise RuntimeError(running.end.error) from error
            raise
        finally:
            with self._lock:
                self._running = None

    def cancel(self, job: str) -> None:
        """See `backend.Backend`."""
        with self._lock:
            running = self._running
            if running is None or running.job != job:
                return
            running.cancelled = True
        self._engine.abort(running.id)

    def healthy(self) -> bool:
        """Every device finishes its queued work and the executor's processes live."""
        if self._engine is None:
            return False
        try:
            self._engine.collective_rpc("synchronize_device", timeout=HEALTH_SECONDS)
            self._engine.executor.check_health()
        except Exception:
            return False
        return not self._engine._closed

    def close(self) -> None:
        """See `backend.Backend`; harmless when repeated or when load failed."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None
        if self._runner is not None:
            self._runner.close()
            self._runner = None
        if self._receiver is not None:
            self._receiver.close()
            self._receiver = None

    async def _consume(self, engine_request: Any) -> Any:
        """Upstream's server path: the last batch of the stream holds the one finished output."""
        outputs: list[Any] = []
        async for batch in self._engine.step_streaming(engine_request):
            outputs = batch
        if not outputs:
            raise RuntimeError("the engine finished without an output")
        return outputs[0]

    def _receive(self, report: report_socket.AnyReport) -> None:
        """On the receiver's thread: pass a report of the running attempt on, drop any other."""
        with self._lock:
            running = self._running
        if running is None or report.request != running.id:
            return
        if running.cancelled:
            # A cancel that came before the engine knew the request was lost; now it is known.
            self._engine.abort(running.id)
        match report:
            case report_socket.PhaseReport(name=name):
                running.progress.phase(cast("PhaseName", name))
            case report_socket.StepReport():
                running.step = report.step
                running.progress.step(
                    StepReport(
                        step=report.step,
                        steps=report.steps,
                        seconds=report.seconds,
                        memory_bytes=report.memory_bytes,
                        expert=report.expert,
                    )
                )
            case report_socket.EndReport():
                running.end = report
                running.ended.set()


def _prepare_libraries(device: str) -> None:
    """Import vllm-omni as its own server does and make sure that it found the device that was asked for."""
    from vllm_omni.plugins import load_omni_general_plugins

    load_omni_general_plugins()
    from vllm_omni.diffusion import diffusion_engine  # noqa: F401
    from vllm_omni.platforms import current_omni_platform

    found = current_omni_platform.device_type
    if found != device:
        raise RuntimeError(f"device is {device}, but vllm-omni found {found or 'none'}")


def _make_engine(arguments: dict[str, Any]) -> Any:
    """Load the weights into a `DiffusionEngine` that can cancel; its dummy run is still to come."""
    from vllm_omni.diffusion.data import OmniDiffusionConfig
    from vllm_omni.diffusion.diffusion_engine import DiffusionEngine
    from vllm_omni.diffusion.registry import DiffusionModelRegistry

    config = OmniDiffusionConfig.from_kwargs(**arguments)
    config.enrich_config()
    # The engine makes cancellation signals only for pipeline classes that check them. Wan's does not by
    # itself; denoising.py checks between its steps.
    pipeline_class = DiffusionModelRegistry._try_load_model_cls(config.model_class_name)
    if pipeline_class is None:
        raise ValueError(f"vllm-omni has no pipeline {config.model_class_name!r} for {config.model}")
    pipeline_class.supports_request_cancellation = True
    return DiffusionEngine.resolve_engine_class(config)(config)


def _engine_request(request: Generate, identity: str, picture: Picture | None) -> Any:
    """The request in vllm-omni's words."""
    from vllm_omni.diffusion.request import OmniDiffusionRequest
    from vllm_omni.inputs.data import OmniDiffusionSamplingParams

    prompt: dict[str, Any] = {"prompt": request.prompt}
    if request.negative_prompt is not None:
        prompt["negative_prompt"] = request.negative_prompt
    if picture is not None:
        from PIL import Image

        prompt["multi_modal_data"] = {"image": Image.fromarray(picture)}
    return OmniDiffusionRequest(
        prompt=prompt,
        request_id=identity,
        sampling_params=OmniDiffusionSamplingParams(
            width=request.width,
            height=request.height,
            num_frames=request.num_frames,
            fps=request.fps,
            num_inference_steps=request.num_inference_steps,
            guidance_scale=request.guidance_scale,
            guidance_scale_2=request.guidance_scale_2,
            boundary_ratio=request.boundary_ratio,
            seed=request.seed,
            output_type="np",
            extra_args={} if request.flow_shift is None else {"flow_shift": request.flow_shift},
        ),
    )


def _generation(output: Any, running: _Running, total: float) -> Generation:
    """Take the frames out of an output; `images` is a list with one array (1, frames, height, width, 3)."""
    import numpy as np

    frames = np.asarray(output.images[0])
    if frames.dtype != np.uint8:
        frames = frames.astype(np.float32)
    if frames.ndim == 5:
        frames = frames[0]
    if frames.ndim != 4 or frames.shape[-1] != 3:
        raise RuntimeError(f"the engine returned an array of shape {frames.shape} instead of frames")
    end = running.end
    return Generation(
        frames=frames,
        seconds={**(end.seconds if end else {}), "total": total},
        expert_steps=dict(end.expert_steps) if end else {},
        peak_memory_bytes=end.peak_memory_bytes if end else 0,
        finite=end.finite if end else True,
    )
