"""The vllm-omni backend of the runtime torch-2.4.1-cu124: `DiffusionEngine` and `Wan22Pipeline` of 0.14.0.

The engine is upstream's, its executor is ours (torch_241/executor.py), and so is its platform. 0.14 knows no
step reports, no cancel and no shift per request; `pipeline_watch` adds them to the loaded instance.
Verified: cpu only.
"""

# ruff: noqa: PLC0415  What is imported late takes seconds and opens the device; `load` reports it as a phase.

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from framekeeper.engine.backends.in_process import InProcessBackend

if TYPE_CHECKING:
    from framekeeper.engine.backends.backend import Picture
    from framekeeper.engine.backends.device import Device
    from framekeeper.engine.backends.pipeline_watch import PipelineWatch
    from framekeeper.engine.protocol import Generate

PIPELINE = "WanPipeline"
"""Upstream's name, and that of the checkpoint's model_index.json, for `Wan22Pipeline`."""


class VllmOmni014Backend(InProcessBackend):
    """See `backend.Backend` and `in_process.InProcessBackend`."""

    def __init__(self) -> None:
        super().__init__()
        self._engine: Any = None
        self._boundary: float | None = None
        self._shift: float | None = None

    def prepare(self, device: Device) -> dict[str, str]:
        """See `InProcessBackend`; raises WrongVersion on any other runtime."""
        from framekeeper.engine.torch_241 import upstream

        versions = upstream.prepare(device)
        from vllm_omni.diffusion import diffusion_engine  # noqa: F401

        return versions

    def open(self, model: str, options: dict[str, Any], device: Device) -> Any:  # noqa: ARG002  the platform has it
        """See `InProcessBackend`."""
        from vllm_omni.diffusion.data import OmniDiffusionConfig
        from vllm_omni.diffusion.diffusion_engine import DiffusionEngine

        from framekeeper.engine.torch_241.executor import InProcessExecutor

        class Engine(DiffusionEngine):  # type: ignore[misc]
            """Upstream's, whose constructor leaves the dummy run to `dummy_run`, so that it is a phase."""

            def _dummy_run(self) -> None:
                """Not yet."""

        executor = type("Executor", (InProcessExecutor,), {"prefetch": options["offload_prefetch"]})
        config = OmniDiffusionConfig.from_kwargs(
            model=model,
            model_class_name=PIPELINE,
            dtype=options["dtype"],
            num_gpus=1,
            distributed_executor_backend=executor,
            enforce_eager=True,
            enable_cpu_offload=options["offload"] == "model",
            enable_layerwise_offload=options["offload"] == "layerwise",
            pin_cpu_memory=options["offload_pin_memory"],
            cache_backend="none",
            vae_use_tiling=bool(options["vae"].get("tiling", False)),
            vae_use_slicing=bool(options["vae"].get("slicing", False)),
            boundary_ratio=options["boundary_ratio"],
            flow_shift=options["flow_shift"],
        )
        self._engine = Engine(config)
        pipeline = self._engine.executor.pipeline
        self._boundary, self._shift = pipeline.boundary_ratio, options["flow_shift"]
        return pipeline

    def dummy_run(self) -> None:
        """Upstream's own: one frame of 1024x1024 in one step, so it never reaches the second expert."""
        from vllm_omni.diffusion.diffusion_engine import DiffusionEngine

        DiffusionEngine._dummy_run(self._engine)

    def grid(self) -> tuple[int, int]:
        """See `InProcessBackend`."""
        pipeline = self._engine.executor.pipeline
        multiple = pipeline.vae_scale_factor_spatial * pipeline.transformer_config.patch_size[1]
        return multiple, pipeline.vae_scale_factor_temporal

    def render(
        self,
        request: Generate,
        watch: PipelineWatch,
        picture: Picture | None,  # noqa: ARG002  refused before
    ) -> Any:
        """See `InProcessBackend`."""
        pipeline = self._engine.executor.pipeline
        # Upstream knows only the boundary and the shift that it was started with.
        pipeline.boundary_ratio = self._boundary if request.boundary_ratio is None else request.boundary_ratio
        shift = self._shift if request.flow_shift is None else request.flow_shift
        watch.schedule = {} if shift is None else {"shift": shift}
        step = pipeline.scheduler_step_maybe_with_cfg
        pipeline.scheduler_step_maybe_with_cfg = functools.partial(_step, step, watch)
        try:
            (output,) = self._engine.step(_engine_request(request))
        finally:
            del pipeline.scheduler_step_maybe_with_cfg
        if not output.images:
            raise RuntimeError("the engine finished without an output")
        return output.images[0]

    def shut(self) -> None:
        """See `InProcessBackend`."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None


def _step(original: Any, watch: PipelineWatch, *args: Any, **kwargs: Any) -> Any:
    """The pipeline's last act of a step: the new latents."""
    latents = original(*args, **kwargs)
    watch.finish_step()
    return latents


def _engine_request(request: Generate) -> Any:
    """The request in vllm-omni 0.14's words."""
    from vllm_omni.diffusion.request import OmniDiffusionRequest
    from vllm_omni.inputs.data import OmniDiffusionSamplingParams

    prompt = {"prompt": request.prompt}
    if request.negative_prompt is not None:
        prompt["negative_prompt"] = request.negative_prompt
    return OmniDiffusionRequest(
        prompts=[prompt],
        request_ids=[f"{request.job}-{request.attempt}-{uuid4().hex[:8]}"],
        sampling_params=OmniDiffusionSamplingParams(
            width=request.width,
            height=request.height,
            num_frames=request.num_frames,
            fps=request.fps,
            num_inference_steps=request.num_inference_steps,
            # Upstream takes 0 for "not given" and puts 4 in its place. Up to 1 there is no guidance anyway.
            guidance_scale=max(request.guidance_scale, 1.0),
            guidance_scale_2=request.guidance_scale_2,
            seed=request.seed,
        ),
    )
