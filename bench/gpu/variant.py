"""One way to run the engine, timed alone while others wait: `variant.py MODEL PROFILES NAME TURNS OUT`.

Each variant is a process of its own with Framekeeper's backend and a profile's options, one expert (so that
several are loaded at once). All load and compile side by side; then each in its turn, in the order in which
they stand in profiles.ENGINES, makes its videos and ends. Left in TURNS: the first noise prediction and the
frames, for `compare`; the line in OUT has seconds by step and phase, and peaks against the memory model.
Where profiles.ENGINES says `trace`, one more step of that size runs under torch.profiler: a line of kernels.
"""

from __future__ import annotations

import json
import math
import os
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

import candidates
from entered import enter

import profiles as bench_profiles
from framekeeper.engine.backends.backend import Progress
from framekeeper.engine.protocol import Generate
from framekeeper.profiles.memory import budget

#: What is written down of a variant's options.
OPTIONS = ("compile", "quantization", "attention_quantization", "offload", "offload_prefetch", "cache", "vae")
#: The checkpoint's text encoder; see checkpoint.py.
TEXT_ENCODER = 2 * (4 * 4096 * 4096 + 3 * 4096 * 10_240)


def request(size: str, frames: int, steps: int) -> Generate:
    """A video of the first expert alone; REHEARSAL=64x64 makes it small."""
    if "REHEARSAL" in os.environ:
        size, frames = os.environ["REHEARSAL"], 9
    width, height = map(int, size.split("x"))
    return Generate(
        job="variant",
        attempt=1,
        prompt="a cat walks on the grass",
        negative_prompt=None,
        width=width,
        height=height,
        num_frames=frames,
        fps=16,
        num_inference_steps=steps,
        guidance_scale=4.0,
        guidance_scale_2=3.0,
        boundary_ratio=0.0,
        flow_shift=3.0,
        seed=1,
        directory="",
    )


class Turns:
    """A directory in which processes say how far they are."""

    def __init__(self, directory: Path, name: str, order: list[str]) -> None:
        self.directory = directory
        self.name = name
        self.order = order

    def say(self, word: str) -> None:
        """`word` is ready or done."""
        (self.directory / f"{self.name}.{word}").touch()

    def wait(self, names: list[str], word: str, seconds: float) -> None:
        """For others to be there, or gone: one that failed is not waited for."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            here = {path.name for path in self.directory.iterdir()}
            if all(f"{name}.{word}" in here or f"{name}.done" in here for name in names):
                return
            time.sleep(0.05)

    def mine(self) -> None:
        """Wait until all are ready and those before have done."""
        self.say("ready")
        self.wait(self.order, "ready", 240)
        self.wait(self.order[: self.order.index(self.name)], "done", 400)


def measure(backend: Any, wanted: Generate) -> tuple[dict[str, Any], Any]:
    """Make one video; what it took and the generation."""
    import torch  # noqa: PLC0415  after the environment is set

    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    steps: list[float] = []
    progress = Progress(phase=lambda _: None, step=lambda report: steps.append(round(report.seconds, 3)))
    made = backend.generate(wanted, progress)
    return {
        "size": f"{wanted.width}x{wanted.height}",
        "step_seconds": steps[1:],
        "seconds": {key: round(value, 3) for key, value in made.seconds.items()},
        "allocated_gb": round(torch.cuda.max_memory_allocated() / 1e9, 2),
        "reserved_gb": round(torch.cuda.max_memory_reserved() / 1e9, 2),
        "frames": [str(made.frames.dtype), made.finite, round(float(made.frames[-1].std()), 3)],
    }, made


def family(kernel: str) -> str:
    """What a kernel does, told by its name; its name where that is not known."""
    for word, what in (
        ("triton", "compiled by Inductor"),
        ("flash", "attention"),
        ("fmha", "attention"),
        ("gemm", "matrix products"),
        ("nvjet", "matrix products"),
        ("cutlass", "matrix products"),
        ("quant", "quantising by vllm"),
    ):
        if word in kernel.lower():
            return what
    return kernel[:60]


def kernels(backend: Any, wanted: Generate) -> dict[str, Any]:
    """Make a video under the profiler; milliseconds on the card by kernel of the denoising, largest first."""
    import torch  # noqa: PLC0415  after the environment is set
    from torch.profiler import ProfilerActivity, profile  # noqa: PLC0415

    activity = ProfilerActivity.CUDA if torch.cuda.is_available() else ProfilerActivity.CPU
    with profile(activities=[activity]) as profiler:
        made = backend.generate(wanted, Progress(phase=lambda _: None, step=lambda _: None))
    trace = Path(tempfile.mkdtemp()) / "trace.json"
    profiler.export_chrome_trace(str(trace))
    listed = json.loads(trace.read_text())["traceEvents"]
    listed = [each for each in listed if each.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    # What comes after the last attention of the last block is the end of that block, and decoding.
    ends = [each["ts"] for each in listed if "FlashAttnFwdSm90" in each["name"]] or [math.inf]
    totals: dict[str, list[float]] = {}
    for each in listed:
        if each["ts"] <= max(ends):
            total = totals.setdefault(each["name"], [0.0, 0])
            total[0] += each["dur"] / 1e3
            total[1] += 1
    families: dict[str, float] = {}
    for name, (ms, _) in totals.items():
        families[family(name)] = families.get(family(name), 0.0) + ms
    found = sorted(totals.items(), key=lambda one: -one[1][0])
    return {
        "size": f"{wanted.width}x{wanted.height}",
        "steps": wanted.num_inference_steps,
        "seconds": {key: round(value, 3) for key, value in made.seconds.items()},
        "families_ms": {
            key: round(ms, 1) for key, ms in sorted(families.items(), key=lambda one: -one[1])[:12]
        },
        "kernels": [[round(ms, 1), int(count), name[:120]] for name, (ms, count) in found[:45]],
    }


def run(model: str, directory: str, name: str, turns: Turns, out: str) -> None:
    """Load, compile, wait, measure."""
    launch = enter(Path(directory), name)
    small = bench_profiles.ENGINES[name]
    os.environ.update(small.get("environment", {}))
    import torch  # noqa: PLC0415

    from framekeeper.engine.backends.vllm_omni import VllmOmniBackend  # noqa: PLC0415

    for change in small.get("changes", ()):
        getattr(candidates, change)()
    backend = VllmOmniBackend()
    quiet = Progress(phase=lambda _: None, step=lambda _: None)
    began = time.monotonic()
    loaded = backend.load(model, launch.options | small.get("options", {}), quiet)
    # Kernels that are chosen by timing them must not be timed beside others'.
    if small.get("in_turn"):
        turns.mine()
        began = time.monotonic()
    backend.generate(request(small["videos"][0][0], 81, 1), quiet)
    ready = time.monotonic() - began
    torch.cuda.empty_cache()
    pipeline = backend._engine.executor.driver_worker.worker.model_runner.pipeline
    noise: list[Any] = []
    predict = pipeline.predict_noise

    def keep(*arguments: Any, **more: Any) -> Any:
        predicted = predict(*arguments, **more)
        if not noise:
            noise.append(predicted.float().cpu())
        return predicted

    pipeline.predict_noise = keep
    turns.mine()
    videos = []
    for size, steps in small["videos"][: 1 if "ONLY_SMALL" in os.environ else None]:
        result, made = measure(backend, request(size, 81, steps))
        needed = budget(launch.profile, text_encoder=TEXT_ENCODER)
        if size == launch.profile.admits.size and needed is not None:
            result["predicted_gb"] = round(needed.bytes / 1e9, 2)
        videos.append(result)
        kept = turns.directory / f"{name}.pt"
        if not kept.exists():
            torch.save({"noise": noise[0], "frames": torch.from_numpy(made.frames)}, kept)
    line = {
        "what": "variant",
        "name": name,
        "options": {key: launch.options[key] for key in OPTIONS} | small.get("options", {}),
        "changes": small.get("changes", []),
        "environment": small.get("environment", {}),
        "compiled_modules": loaded["compiled_modules"],
        "load_seconds": loaded["load_seconds"],
        "first_video_seconds" if small.get("in_turn") else "ready_seconds_side_by_side": round(ready, 1),
        "videos": videos,
    }
    with Path(out).open("a") as file:
        file.write(json.dumps(line) + "\n")
    if "trace" in small:
        traced = {"what": "kernels", "name": name, **kernels(backend, request(small["trace"], 81, 1))}
        with Path(out).open("a") as file:
            file.write(json.dumps(traced) + "\n")


def compare(turns: Path, base: str, out: str) -> None:
    """Errors of every variant's noise and frames against those of `base`."""
    import torch  # noqa: PLC0415
    from skimage.metrics import structural_similarity  # noqa: PLC0415

    reference = torch.load(turns / f"{base}.pt")
    for path in sorted(turns.glob("*.pt")):
        other = torch.load(path)
        difference = other["noise"].double() - reference["noise"].double()
        squares = float((other["frames"].float() - reference["frames"].float()).square().mean())
        similar = [
            structural_similarity(
                reference["frames"][at].numpy(), other["frames"][at].numpy(), channel_axis=2, data_range=255
            )
            for at in range(0, len(reference["frames"]), 20)
        ]
        line = {
            "what": "compared",
            "name": path.stem,
            "with": base,
            "noise_error": float(difference.norm() / reference["noise"].double().norm()),
            "psnr_db": round(10 * float(torch.log10(torch.tensor(255**2 / squares))), 2) if squares else None,
            "ssim": round(sum(similar) / len(similar), 4),
        }
        with Path(out).open("a") as file:
            file.write(json.dumps(line) + "\n")


def main(arguments: list[str]) -> None:
    """See the module; `variant.py compare TURNS BASE OUT` compares."""
    if arguments[0] == "compare":
        compare(Path(arguments[1]), arguments[2], arguments[3])
        return
    model, directory, name, where, out = arguments
    turns = Turns(Path(where), name, os.environ["TURN_ORDER"].split())
    code = 1
    try:
        run(model, directory, name, turns, out)
        code = 0
    except BaseException:
        traceback.print_exc()
    turns.say("done")
    # The engine's threads would keep a failed process alive.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1:])
