"""The diffusers backend: diffusers' own Wan pipelines with both experts, plain torch on any device.

The rung below vllm-omni: where that does not come up, this needs nothing but torch. Written for diffusers
0.36.0 on torch 2.4.1, and for 0.40.0 on torch 2.13.0; offload is diffusers' own. Verified: cpu only.
"""

# ruff: noqa: PLC0415  What is imported late takes seconds; `load` reports it as a phase.

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from framekeeper.checkpoint import pictures
from framekeeper.engine.backends.backend import RequestRefused
from framekeeper.engine.backends.in_process import InProcessBackend

if TYPE_CHECKING:
    from framekeeper.engine.backends.backend import Picture
    from framekeeper.engine.backends.device import Device
    from framekeeper.engine.backends.pipeline_watch import PipelineWatch
    from framekeeper.engine.protocol import Generate


class DiffusersBackend(InProcessBackend):
    """See `backend.Backend` and `in_process.InProcessBackend`."""

    def __init__(self) -> None:
        super().__init__()
        self._pipeline: Any = None
        #: The same model, for videos that start from a picture.
        self._from_picture: Any = None
        self._pictures = "none"
        self._boundary: float | None = None
        self._shift: float | None = None

    def prepare(self, device: Device) -> dict[str, str]:
        """See `InProcessBackend`; raises WrongVersion on any other runtime."""
        from framekeeper.engine.cpu_platform.torchvision_schema import predefine
        from framekeeper.engine.torch_241 import missing_apis, versions

        found = versions.require(versions.DIFFUSERS_036, versions.DIFFUSERS_040)
        if found["diffusers"] == versions.DIFFUSERS_036["diffusers"]:
            missing_apis.install()
        elif device.kind == "cpu":
            # transformers imports torchvision where it is installed; see there.
            predefine()
        from diffusers import WanPipeline  # noqa: F401
        from diffusers.utils.logging import disable_progress_bar

        # Bars on stderr drown the messages that diagnosis reads there.
        disable_progress_bar()
        return found

    def open(self, model: str, options: dict[str, Any], device: Device) -> Any:
        """See `InProcessBackend`."""
        import torch
        from diffusers import WanImageToVideoPipeline, WanPipeline

        self._pictures = pictures.taken(Path(model)) or "none"
        kind = WanImageToVideoPipeline if self._pictures == "required" else WanPipeline
        pipeline = kind.from_pretrained(
            model,
            # The autoencoder loses detail in half precision; Wan's authors keep it in float32.
            torch_dtype={"default": getattr(torch, options["dtype"]), "vae": torch.float32},
            local_files_only=True,
        )
        pipeline.set_progress_bar_config(disable=True)
        if options["vae"].get("tiling"):
            pipeline.vae.enable_tiling()
        if options["vae"].get("slicing"):
            pipeline.vae.enable_slicing()
        _place(pipeline, options, device)
        self._pipeline = pipeline
        self._boundary = options["boundary_ratio"]
        if self._boundary is None:
            self._boundary = pipeline.config.boundary_ratio
        self._shift = options["flow_shift"]
        if self._shift is None:
            self._shift = pipeline.scheduler.config.get("flow_shift")
        return pipeline

    def grid(self) -> tuple[int, int]:
        """See `InProcessBackend`."""
        config = (self._pipeline.transformer or self._pipeline.transformer_2).config
        return (
            self._pipeline.vae_scale_factor_spatial * config.patch_size[1],
            self._pipeline.vae_scale_factor_temporal,
        )

    def pictures(self) -> str:
        """See `InProcessBackend`."""
        return self._pictures

    def render(self, request: Generate, watch: PipelineWatch, picture: Picture | None) -> Any:
        """See `InProcessBackend`."""
        import torch

        pipeline, image = self._pipeline, {}
        if picture is not None:
            from PIL import Image

            pipeline, image = self._for_pictures(watch), {"image": Image.fromarray(picture)}
        boundary = self._boundary if request.boundary_ratio is None else request.boundary_ratio
        pipeline.register_to_config(boundary_ratio=boundary)
        self._set_shift(request)
        device = self._pipeline._execution_device
        try:
            output = pipeline(
                **image,
                prompt=request.prompt,
                negative_prompt=request.negative_prompt,
                width=request.width,
                height=request.height,
                num_frames=request.num_frames,
                num_inference_steps=request.num_inference_steps,
                guidance_scale=request.guidance_scale,
                # Without a boundary there is no second expert, and diffusers refuses a scale for one.
                guidance_scale_2=None if boundary is None else request.guidance_scale_2,
                generator=torch.Generator(device).manual_seed(request.seed),
                output_type="np",
                callback_on_step_end=_end_of_step(watch),
            )
        finally:
            # Which diffusers leaves out when a cancel ends the loop: with model offload it clears the device.
            self._pipeline.maybe_free_model_hooks()
        return output.frames

    def _for_pictures(self, watch: PipelineWatch) -> Any:
        """The pipeline that takes one. Of TI2V-5B the loaded one takes none, so a second shares its parts."""
        from diffusers import WanImageToVideoPipeline

        if isinstance(self._pipeline, WanImageToVideoPipeline):
            return self._pipeline
        if self._from_picture is None:
            self._from_picture = WanImageToVideoPipeline(
                **self._pipeline.components,
                boundary_ratio=self._boundary,
                expand_timesteps=self._pipeline.config.expand_timesteps,
            )
            self._from_picture.set_progress_bar_config(disable=True)
            watch.follow(self._from_picture)
        return self._from_picture

    def _set_shift(self, request: Generate) -> None:
        shift = self._shift if request.flow_shift is None else request.flow_shift
        if shift is None:
            return
        scheduler = self._pipeline.scheduler
        if "flow_shift" not in scheduler.config:
            raise RequestRefused(f"{type(scheduler).__name__} of this model has no flow_shift", "flow_shift")
        scheduler.register_to_config(flow_shift=shift)

    def shut(self) -> None:
        """See `InProcessBackend`."""
        self._pipeline = self._from_picture = None


def _end_of_step(watch: PipelineWatch) -> Any:
    """diffusers' callback at the end of each step.

    Raising out of it is the only way to leave without decoding: its own `interrupt` skips the remaining steps
    and decodes what there is.
    """

    def callback(_pipeline: Any, _step: int, _timestep: Any, _tensors: dict[str, Any]) -> dict[str, Any]:
        watch.finish_step()
        return {}

    return callback


def _place(pipeline: Any, options: dict[str, Any], device: Device) -> None:
    """Put the weights where `offload` says, by diffusers' own means."""
    import torch

    if options["offload"] == "model":
        pipeline.enable_model_cpu_offload(device=device.torch_device)
        return
    if options["offload"] == "none":
        pipeline.to(device.torch_device)
        return
    # A stream of its own means copies beside the computing; without one they block on the compute stream.
    beside = options["offload_prefetch"] == "async" and device.kind == "cuda"
    how = {
        "onload_device": device.torch_device,
        "offload_device": torch.device("cpu"),
        "use_stream": beside,
        # Means that the host's copies are not pinned; diffusers pins only those that a stream reads.
        "low_cpu_mem_usage": not options["offload_pin_memory"],
    }
    for transformer in (pipeline.transformer, pipeline.transformer_2):
        if transformer is not None:
            transformer.enable_group_offload(offload_type="block_level", num_blocks_per_group=1, **how)
    pipeline.text_encoder.to(device.torch_device)
    pipeline.vae.to(device.torch_device)
