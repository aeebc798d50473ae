"""What Framekeeper adds to vllm-omni's diffusion worker, in the process where the denoising loop runs.

vllm-omni puts a `worker_extension_cls` before its own worker in the method resolution order, so the class
below overrides and calls super(). It wraps methods of the loaded pipeline *instance*; no file and no class
of vllm-omni is changed. Written against `Wan22Pipeline` of 0.30.0.
"""

from __future__ import annotations

import functools
import os
import time
from typing import Any

from vllm_omni.diffusion.cancellation import check_request_cancellation
from vllm_omni.diffusion.data import DiffusionOutput
from vllm_omni.errors import OmniClientError
from vllm_omni.platforms import current_omni_platform

from framekeeper.engine.backends.blocking_prefetch import make_blocking
from framekeeper.engine.backends.fp8_attention import quantize_attention
from framekeeper.engine.backends.omni_arguments import ATTENTION_KEY, PREFETCH_KEY
from framekeeper.engine.backends.report_socket import (
    PATH_VARIABLE,
    EndReport,
    PhaseReport,
    Sender,
    StepReport,
)


class ObservedWorker:
    """Worker extension: reports every step from rank 0, cancels between steps, refuses wrong requests."""

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """Load as upstream does, then wrap what the loop calls. Runs inside the worker's constructor."""
        super().load_model(*args, **kwargs)  # type: ignore[misc]
        path = os.environ.get(PATH_VARIABLE)
        sender = Sender(path) if path and self.rank == 0 else None  # type: ignore[attr-defined]
        pipeline = self.model_runner.pipeline  # type: ignore[attr-defined]
        if self.od_config.additional_config.get(PREFETCH_KEY) == "sync":  # type: ignore[attr-defined]
            hooks = make_blocking(pipeline)
            if self.od_config.enable_layerwise_offload and not hooks:  # type: ignore[attr-defined]
                raise RuntimeError("offload_prefetch sync found no layerwise hook to change")
        if self.od_config.additional_config.get(ATTENTION_KEY) == "fp8":  # type: ignore[attr-defined]
            quantize_attention(pipeline)
        self._observer = Observer(pipeline, sender)
        self._loaded_boundary = pipeline.boundary_ratio

    def execute_model(self, req: Any, *args: Any, **kwargs: Any) -> Any:
        """Run one request; upstream's `DiffusionOutput`. A wrong request becomes one with status 400.

        Upstream's executors turn any exception into a bare message, so what kind it was has to be put into
        the output here.
        """
        pipeline = self.model_runner.pipeline  # type: ignore[attr-defined]
        self._observer.begin(req.request_id, reporting=not req.is_dummy_run())
        try:
            refuse_wrong(pipeline, req)
            # Upstream prefers the boundary it was started with to the request's.
            wanted = req.sampling_params.boundary_ratio
            pipeline.boundary_ratio = self._loaded_boundary if wanted is None else wanted
            if pipeline.boundary_ratio is None and pipeline.transformer_2 is None:
                # Never reached. Without one upstream warns on every video that it guesses.
                pipeline.boundary_ratio = 0.0
            return super().execute_model(req, *args, **kwargs)  # type: ignore[misc]
        except OmniClientError as error:
            return DiffusionOutput.from_exception(error)
        except Exception as error:
            # Upstream's executors keep the words and drop the type, or drop both (multiprocess).
            self._observer.fail(error)
            raise
        finally:
            self._observer.end()

    def describe(self) -> dict[str, Any]:
        """Facts for `Loaded`: device name, bytes its allocator holds, number of experts, what is compiled,
        and whether its videos may or must start from a picture.
        """
        pipeline = self.model_runner.pipeline  # type: ignore[attr-defined]
        experts = [part for part in (pipeline.transformer, pipeline.transformer_2) if part is not None]
        return {
            "compiled_modules": [compiled_modules(expert) for expert in experts],
            "device_name": str(current_omni_platform.get_device_name()),
            "memory_bytes": int(current_omni_platform.memory_reserved()),
            "experts": len(experts),
            "pictures": pictures(pipeline),
        }


def pictures(pipeline: Any) -> str:
    """`none`, `optional` or `required`, as in a profile's `admits.image`.

    Upstream's I2V class has a protocol of its own for it; its other one takes a picture by the way.
    """
    if getattr(pipeline, "support_image_input", False):
        return "required"
    return "optional" if pipeline.expand_timesteps else "none"


def compiled_modules(expert: Any) -> int:
    """Modules of a transformer whose forward goes through torch.compile.

    Upstream only logs a warning when it cannot compile one and goes on without
    (https://github.com/vllm-project/vllm-omni/issues/1535).
    """

    def compiled(module: Any) -> bool:
        ways = (module.forward, getattr(module, "_omni_original_forward", None))
        whole = getattr(module, "_compiled_call_impl", None) is not None
        return whole or any(hasattr(way, "_torchdynamo_orig_callable") for way in ways)

    return sum(compiled(module) for module in expert.modules())


def refuse_wrong(pipeline: Any, request: Any) -> None:
    """Raise OmniClientError, with the field as its type, for what this model cannot make.

    Upstream rounds sizes and frame counts down in silence; a video of another shape than the one that was
    accepted is not what its owner asked for.
    """
    params = request.sampling_params
    multiple = pipeline.vae_scale_factor_spatial * pipeline.transformer.config.patch_size[1]
    group = pipeline.vae_scale_factor_temporal
    text = request.prompt if isinstance(request.prompt, str) else request.prompt.get("prompt")
    faults = {
        "prompt": None if text and text.strip() else "the prompt is empty",
        "width": params.width % multiple and f"width {params.width} is not a multiple of {multiple}",
        "height": params.height % multiple and f"height {params.height} is not a multiple of {multiple}",
        "num_frames": (params.num_frames - 1) % group
        and not request.is_dummy_run()
        and f"num_frames {params.num_frames} is not a multiple of {group} plus 1",
        "num_inference_steps": params.num_inference_steps < 1 and "num_inference_steps must be at least 1",
    }
    for field, message in faults.items():
        if message:
            raise OmniClientError(str(message), error_type=field)


class Observer:
    """Wraps one pipeline's methods and turns what they do into reports; `sender` is None off rank 0."""

    def __init__(self, pipeline: Any, sender: Sender | None) -> None:
        self._pipeline = pipeline
        self._sender = sender
        self.begin("", reporting=False)
        # The runner opens upstream's cancellation scope only for pipelines that say this.
        pipeline.supports_request_cancellation = True
        # A bar per video on stderr drowns the messages that diagnosis reads there.
        pipeline.set_progress_bar_config(disable=True)
        for name in ("encode_prompt", "diffuse", "record_denoise_step", "predict_noise", "check_inputs"):
            original = getattr(pipeline, name)
            wrapped = functools.wraps(original)(functools.partial(getattr(self, f"_{name}"), original))
            setattr(pipeline, name, wrapped)
        decode = pipeline.vae.decode
        pipeline.vae.decode = functools.wraps(decode)(functools.partial(self._decode, decode))

    def begin(self, request: str, *, reporting: bool) -> None:
        """A request starts; without `reporting` (upstream's dummy run) nothing is sent."""
        self._request = request
        self._reporting = reporting and self._sender is not None
        self._steps = self._step = 0
        self._expert: int | None = None
        self._expert_steps: dict[int, int] = {}
        self._seconds: dict[str, float] = {}
        self._phase: str | None = None
        self._error: str | None = None
        self._finite = True
        self._since = self._phase_since = time.monotonic()

    def fail(self, error: Exception) -> None:
        """The request ends by this exception."""
        # A datagram has a limit, and an out-of-memory message with its statistics can be long.
        self._error = f"{type(error).__name__}: {error}"[:8000]

    def end(self) -> None:
        """The request is over: finished, cancelled, refused or failed."""
        if not self._reporting:
            return
        self._close_phase()
        self._send(
            EndReport(
                request=self._request,
                step=self._step,
                seconds=self._seconds,
                expert_steps=self._expert_steps,
                peak_memory_bytes=int(current_omni_platform.max_memory_reserved() or 0),
                error=self._error,
                finite=self._finite,
            )
        )

    def _send(self, report: PhaseReport | StepReport | EndReport) -> None:
        if self._reporting and self._sender is not None:
            self._sender.send(report)

    def _enter(self, phase: str) -> None:
        """Begin a phase; the one before it ends here, so queued device work is waited for first."""
        if self._reporting:
            current_omni_platform.synchronize()
        self._close_phase()
        self._phase = phase
        self._send(PhaseReport(request=self._request, name=phase))

    def _close_phase(self) -> None:
        now = time.monotonic()
        if self._phase is not None:
            self._seconds[self._phase] = self._seconds.get(self._phase, 0.0) + now - self._phase_since
        self._phase, self._phase_since = None, now

    def _report_step(self, step: int) -> None:
        if self._expert is not None and step > self._step:
            self._expert_steps[self._expert] = self._expert_steps.get(self._expert, 0) + 1
        self._step = step
        now = time.monotonic()
        self._send(
            StepReport(
                request=self._request,
                step=step,
                steps=self._steps,
                seconds=now - self._since,
                memory_bytes=int(current_omni_platform.memory_reserved()),
                expert=self._expert,
            )
        )
        self._since = now

    # Stand-ins for the pipeline's methods; `original` is the bound method of the pipeline.

    def _encode_prompt(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        self._enter("text_encoding")
        return original(*args, **kwargs)

    def _diffuse(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        timesteps = kwargs["timesteps"] if "timesteps" in kwargs else args[1]
        self._steps = len(timesteps)
        # Whole timesteps out of 1000: several hundred steps repeat some, and upstream's solver then fails
        # an assertion half-way through the video.
        distinct = len(set(timesteps.tolist()))
        if distinct < self._steps:
            message = f"num_inference_steps {self._steps} leaves only {distinct} distinct timesteps"
            raise OmniClientError(message, error_type="num_inference_steps")
        self._enter("denoising")
        latents = original(*args, **kwargs)
        if self._reporting:
            current_omni_platform.synchronize()  # so that the last step is finished, as reported
        self._report_step(self._steps)
        self._enter("decoding")
        return latents

    def _record_denoise_step(self, original: Any, step: int, *args: Any, **kwargs: Any) -> None:
        """Before step `step`. The original reads the timestep's value from the device, which waits for all
        that was queued before: the step that is reported finished is finished.
        """
        original(step, *args, **kwargs)
        self._report_step(step)
        self._expert = None
        # On every rank: with several it is a collective decision, so that none waits in the next step.
        check_request_cancellation(synchronize=True)

    def _predict_noise(self, original: Any, *args: Any, current_model: Any = None, **kwargs: Any) -> Any:
        second = current_model is not None and current_model is self._pipeline.transformer_2
        self._expert = 1 if second else 0
        return original(*args, current_model=current_model, **kwargs)

    def _decode(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        """Frames leave the device in 8 bits, which hide NaN: look before."""
        decoded = original(*args, **kwargs)
        frames = decoded[0] if isinstance(decoded, tuple) else decoded.sample
        self._finite = bool(frames.isfinite().all())
        return decoded

    def _check_inputs(self, original: Any, *args: Any, **kwargs: Any) -> None:
        """Upstream raises a plain ValueError here, which would look like a failure of the engine."""
        try:
            original(*args, **kwargs)
        except ValueError as error:
            raise OmniClientError(str(error)) from error
