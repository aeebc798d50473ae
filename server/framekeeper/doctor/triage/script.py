"""A stand-alone Python script that makes the same video with the engine's libraries only.

It is text: nothing here imports what the script imports. Written against vllm-omni 0.30.0
(https://github.com/vllm-project/vllm-omni/releases/tag/v0.30.0, `diffusion/diffusion_engine.py`) and
diffusers 0.40.0 and 0.36.0 (https://huggingface.co/docs/diffusers/api/pipelines/wan), called as our backends
call them.
"""

from __future__ import annotations

import pprint
from pathlib import Path
from typing import Any

from framekeeper.engine.backends.omni_arguments import engine_arguments
from framekeeper.engine.bring_up import warm_up_request
from framekeeper.profiles.launch import Launch

#: Of our own or of this host's moment; they mean nothing to the libraries.
_OURS = ("HOME", "TMPDIR", "PATH", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH")
#: What only our worker extension reads.
_EXTENSION = ("worker_extension_cls", "additional_config")


class NoScript(Exception):
    """There can be no such script; the message says why."""


def text(launch: Launch, reason: str, *, empty_caches: bool) -> str:
    """The script. `reason` is a sentence about what it reproduces. Raises NoScript.

    With `empty_caches` it makes new ones, otherwise it uses the launch's.
    """
    if launch.profile.admits.image == "required":
        raise NoScript("the model makes videos from a picture only, and the script has none to bring")
    old = launch.runtime.startswith("torch-2.4.1")
    if launch.backend == "vllm_omni":
        if old:
            raise NoScript(f"vllm-omni on {launch.runtime} runs only with Framekeeper's port of it")
        libraries = "vllm-omni 0.30.0"
        body = _OMNI.format(
            arguments=_shown(_library_arguments(launch)),
            sampling=_shown(_sampling(launch)),
            prompt=_shown(_prompt(launch)),
        )
    elif launch.backend == "diffusers":
        libraries = "diffusers 0.36.0 on torch 2.4.1" if old else "diffusers 0.40.0"
        body = _diffusers(launch, _GROUPED if old else "")
    else:
        raise NoScript(f"the backend {launch.backend} has no library of its own")
    environment, fresh = _environment(launch, empty_caches=empty_caches)
    head = _HEAD.format(
        libraries=libraries,
        reason=reason.replace("\\", "/").replace('"""', "'''"),
        environment=_shown(environment),
        fresh=_shown(fresh),
        cpu=_CPU if launch.options["device"] == "cpu" else "",
    )
    return head + body + _FOOT


def _library_arguments(launch: Launch) -> dict[str, Any]:
    arguments = engine_arguments(launch.model, launch.options)
    return {key: value for key, value in arguments.items() if key not in _EXTENSION}


def _prompt(launch: Launch) -> dict[str, str]:
    request = warm_up_request(launch, Path())
    prompt = {"prompt": request.prompt}
    return (
        prompt if request.negative_prompt is None else prompt | {"negative_prompt": request.negative_prompt}
    )


def _sampling(launch: Launch) -> dict[str, Any]:
    request = warm_up_request(launch, Path())
    keys = (
        "width",
        "height",
        "num_frames",
        "fps",
        "num_inference_steps",
        "guidance_scale",
        "guidance_scale_2",
        "boundary_ratio",
        "seed",
    )
    sampling: dict[str, Any] = {key: getattr(request, key) for key in keys}
    sampling["output_type"] = "np"
    if request.flow_shift is not None:
        sampling["extra_args"] = {"flow_shift": request.flow_shift}
    return sampling


def _diffusers(launch: Launch, patch: str) -> str:
    request = warm_up_request(launch, Path())
    options = launch.options
    call = {
        **_prompt(launch),
        "width": request.width,
        "height": request.height,
        "num_frames": request.num_frames,
        "num_inference_steps": request.num_inference_steps,
        "guidance_scale": request.guidance_scale,
        "guidance_scale_2": None if request.boundary_ratio is None else request.guidance_scale_2,
        "output_type": "np",
    }
    return patch + _DIFFUSERS.format(
        patched="grouped_attention()\n    " if patch else "",
        model=launch.model,
        dtype=options["dtype"],
        device="cuda:0" if options["device"] == "cuda" else "cpu",
        offload=options["offload"],
        tiling=bool(options["vae"].get("tiling")),
        boundary=request.boundary_ratio,
        shift=request.flow_shift,
        call=_shown(call),
    )


def _environment(launch: Launch, *, empty_caches: bool) -> tuple[dict[str, str], dict[str, str]]:
    """Variables with their values, and those of empty caches with their folders below a new directory."""
    cache = f"{launch.cache_directory}/"
    kept, fresh = {}, {}
    for name, value in sorted(launch.environment.items()):
        if name in _OURS:
            continue
        if empty_caches and value.startswith(cache):
            fresh[name] = value.removeprefix(cache)
        else:
            kept[name] = value
    return kept, fresh


def _shown(value: Any) -> str:
    return pprint.pformat(value, width=100, sort_dicts=False)


_HEAD = '''\
"""Makes one small video with {libraries} alone; exit status 0 when it passes, else a traceback or 1.

Written by `framekeeper triage`. {reason}
Run it with the Python of the environment that holds the libraries, on a host whose devices are free.
"""

import os
import sys
import tempfile

# Before anything imports torch. Spawned processes run this again and inherit the same directory.
os.environ.update({environment})
EMPTY_CACHES = {fresh}
if EMPTY_CACHES and "REPRODUCE_CACHES" not in os.environ:
    os.environ["REPRODUCE_CACHES"] = tempfile.mkdtemp(prefix="reproduce-")
for name, folder in EMPTY_CACHES.items():
    os.environ[name] = os.path.join(os.environ["REPRODUCE_CACHES"], folder)
{cpu}

def look(frames):
    """frames: an array (frames, height, width, 3) of 0..1"""
    import numpy

    frames = numpy.asarray(frames, dtype=numpy.float32)
    frames = frames[0] if frames.ndim == 5 else frames
    print("frames", frames.shape, "least", frames.min(), "most", frames.max(), "deviation", frames.std())
    if not numpy.isfinite(frames).all():
        sys.exit("FAILED: the frames hold values that are not finite")
    if frames.std() < 1.5 / 255 or frames.max() < 6 / 255:
        sys.exit("FAILED: the frames are constant or black")

'''
_CPU = """\
# No release of vllm-omni has a platform for CPUs: on one, the plug-in that answers to FRAMEKEEPER_DEVICE has
# to be installed beside it. diffusers needs nothing.
"""
_OMNI = """
def main():
    import asyncio
    import multiprocessing

    multiprocessing.set_start_method("spawn", force=True)
    from vllm_omni.plugins import load_omni_general_plugins

    load_omni_general_plugins()
    from vllm_omni.diffusion.data import OmniDiffusionConfig
    from vllm_omni.diffusion.diffusion_engine import DiffusionEngine
    from vllm_omni.diffusion.request import OmniDiffusionRequest
    from vllm_omni.inputs.data import OmniDiffusionSamplingParams

    config = OmniDiffusionConfig.from_kwargs(**{arguments})
    config.enrich_config()
    engine = DiffusionEngine.resolve_engine_class(config)(config)
    engine.run_startup_warmup()
    request = OmniDiffusionRequest(
        prompt={prompt},
        request_id="reproduce",
        sampling_params=OmniDiffusionSamplingParams(**{sampling}),
    )

    async def make():
        outputs = []
        async for batch in engine.step_streaming(request):
            outputs = batch
        return outputs

    outputs = asyncio.run(make())
    look(outputs[0].images[0])
    engine.close()

"""
_GROUPED = """
def grouped_attention():
    # diffusers passes `enable_gqa`, which came with torch 2.5; Wan's heads are all of one kind.
    from torch.nn import functional

    original = functional.scaled_dot_product_attention

    def attention(*args, enable_gqa=False, **kwargs):
        assert not enable_gqa
        return original(*args, **kwargs)

    functional.scaled_dot_product_attention = attention

"""
_DIFFUSERS = """
def main():
    import torch

    if "{device}" == "cpu":
        # The torchvision wheel of PyPI is a CUDA build; beside a CPU torch it lacks two operators.
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name, schema in (
            ("nms", "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"),
            ("qnms", "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"),
        ):
            if not torch._C._dispatch_has_kernel("torchvision::" + name):
                library.define(schema)
    {patched}from diffusers import WanPipeline

    pipeline = WanPipeline.from_pretrained(
        {model!r},
        torch_dtype={{"default": torch.{dtype}, "vae": torch.float32}},
        local_files_only=True,
    )
    if {tiling}:
        pipeline.vae.enable_tiling()
    offload = "{offload}"
    if offload == "model":
        pipeline.enable_model_cpu_offload(device="{device}")
    elif offload == "none":
        pipeline.to("{device}")
    else:
        for transformer in (pipeline.transformer, pipeline.transformer_2):
            if transformer is not None:
                transformer.enable_group_offload(
                    onload_device=torch.device("{device}"),
                    offload_device=torch.device("cpu"),
                    offload_type="block_level",
                    num_blocks_per_group=1,
                )
        pipeline.text_encoder.to("{device}")
        pipeline.vae.to("{device}")
    if {boundary} is not None:
        pipeline.register_to_config(boundary_ratio={boundary})
    if {shift} is not None and "flow_shift" in pipeline.scheduler.config:
        pipeline.scheduler.register_to_config(flow_shift={shift})
    output = pipeline(**{call}, generator=torch.Generator("{device}").manual_seed(0))
    look(output.frames)

"""
_FOOT = """
if __name__ == "__main__":
    main()
    print("PASSED: the libraries alone make this video")
    sys.stdout.flush()
    os._exit(0)  # some engines leave threads that would be waited for
"""
