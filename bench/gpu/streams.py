"""The CUDA streams on which layerwise offload works: `streams.py MODEL PROFILES NAME OUT [FRAMES]`.

Loads a (small) checkpoint through Framekeeper's own backend with a profile's options, makes a video under
torch.profiler and appends one line of JSON to OUT: kernels and host-to-device copies by stream, how much of
the copies' time other kernels ran, and on which streams block-sized memory was allocated.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter, defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from entered import enter

from framekeeper.engine.backends.backend import Progress
from framekeeper.engine.protocol import Generate
from framekeeper.media.inspect import inspect

#: A block of the real width has 0.7 GB; smaller allocations and copies are something else.
BLOCK_BYTES = 100 * 10**6


def events(trace: Path) -> list[dict[str, Any]]:
    """Kernels and copies of a profiler's trace."""
    listed = json.loads(trace.read_text())["traceEvents"]
    return [each for each in listed if each.get("cat") in ("kernel", "gpu_memcpy")]


def overlap(copies: list[dict[str, Any]], kernels: list[dict[str, Any]]) -> float:
    """Share of the copies' time during which some kernel ran."""
    spans = sorted((each["ts"], each["ts"] + each["dur"]) for each in kernels)
    shared = total = 0.0
    for copy in copies:
        start, end = copy["ts"], copy["ts"] + copy["dur"]
        total += end - start
        for begin, finish in spans:
            if begin >= end:
                break
            if finish > start:
                shared += min(end, finish) - max(start, begin)
    return shared / total if total else 0.0


def main(model: str, profiles: str, name: str, out: str, frames: str = "33") -> None:
    """Load, warm up, profile one video of two steps."""
    launch = enter(Path(profiles), name)
    import torch  # noqa: PLC0415  after the environment is set
    from torch.profiler import ProfilerActivity, profile  # noqa: PLC0415

    from framekeeper.engine.backends.vllm_omni import VllmOmniBackend  # noqa: PLC0415

    backend = VllmOmniBackend()
    quiet = Progress(phase=lambda _: None, step=lambda _: None)
    loaded = backend.load(model, launch.options, quiet)
    request = Generate(
        job="streams",
        attempt=1,
        prompt="a cat walks on the grass",
        negative_prompt=None,
        width=832,
        height=480,
        num_frames=int(frames),
        fps=16,
        num_inference_steps=2,
        guidance_scale=4.0,
        guidance_scale_2=3.0,
        boundary_ratio=0.875,
        flow_shift=3.0,
        seed=1,
        directory="",
    )
    backend.generate(request, quiet)
    torch.cuda.memory._record_memory_history(max_entries=1_000_000)
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        generation = backend.generate(request, quiet)
    history = torch.cuda.memory._snapshot()["device_traces"][0]
    torch.cuda.memory._record_memory_history(enabled=None)
    trace = Path(tempfile.mkdtemp()) / "trace.json"
    profiler.export_chrome_trace(str(trace))
    listed = events(trace)
    kernels = [each for each in listed if each["cat"] == "kernel"]
    copies = [
        each for each in listed if "HtoD" in each["name"] and each["args"].get("bytes", 0) >= BLOCK_BYTES
    ]
    by_stream: dict[str, Counter[str]] = defaultdict(Counter)
    for kind, group in (("kernels", kernels), ("block_copies", copies)):
        for each in group:
            by_stream[kind][str(each["args"].get("stream"))] += 1
    for entry in history:
        if entry["action"] == "alloc" and entry["size"] >= BLOCK_BYTES:
            by_stream["large_allocations"][f"{entry['stream']:#x}"] += 1
    moved = sum(each["args"]["bytes"] for each in copies)
    seconds = sum(each["dur"] for each in copies) / 1e6
    result = {
        "what": "streams",
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "profile": name,
        "num_frames": int(frames),
        "prefetch": launch.options["offload_prefetch"],
        "versions": loaded["versions"],
        "device": loaded["device_name"],
        **{kind: dict(counts) for kind, counts in by_stream.items()},
        "copied_gb": round(moved / 1e9, 2),
        "copy_gb_per_second": round(moved / 1e9 / seconds, 1) if seconds else None,
        "copies_overlapped_by_kernels": round(overlap(copies, kernels), 3),
        "seconds": generation.seconds,
        "peak_memory_bytes": generation.peak_memory_bytes,
        "frames": inspect(generation.frames, finite=generation.finite).facts(),
    }
    # A file: vllm-omni puts a prefix before all that is printed.
    with Path(out).open("a") as file:
        file.write(json.dumps(result) + "\n")
    backend.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
