"""What backends have in common that run one pipeline on one device in the worker's own process."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from framekeeper.engine.backends.backend import Generation, Progress
from framekeeper.engine.backends.device import Device, open_device
from framekeeper.engine.backends.omni_arguments import complete
from framekeeper.engine.backends.pipeline_watch import PipelineWatch
from framekeeper.engine.backends.recorder import Recorder
from framekeeper.engine.backends.refusals import refuse_picture, refuse_wrong

if TYPE_CHECKING:
    import numpy as np

    from framekeeper.engine.backends.backend import Picture
    from framekeeper.engine.protocol import Generate


class InProcessBackend:
    """Implements `backend.Backend`; a library's own part are the methods at the end."""

    def __init__(self) -> None:
        self._device: Device | None = None
        self._watch: PipelineWatch | None = None
        self._running: Recorder | None = None
        self._lock = threading.Lock()

    def load(self, model: str, options: dict[str, Any], progress: Progress) -> dict[str, Any]:
        """Also raises ValueError for options that it cannot do, before anything heavy is imported."""
        whole = complete(options)
        refuse_options(whole)
        progress.phase("importing")
        began = time.monotonic()
        device = self._device = open_device(whole["device"])
        versions = self.prepare(device)
        imported = time.monotonic()
        progress.phase("loading")
        pipeline = self.open(model, whole, device)
        self._watch = PipelineWatch(pipeline)
        loaded = time.monotonic()
        progress.phase("dummy_run")
        self.dummy_run()
        finished = time.monotonic()
        return {
            "device_name": device.name(),
            "memory_bytes": device.memory(),
            "experts": sum(part is not None for part in (pipeline.transformer, pipeline.transformer_2)),
            "versions": versions,
            "devices": 1,
            "pictures": self.pictures(),
            "import_seconds": round(imported - began, 3),
            "load_seconds": round(loaded - imported, 3),
            "dummy_run_seconds": round(finished - loaded, 3),
        }

    def generate(self, request: Generate, progress: Progress, picture: Picture | None = None) -> Generation:
        """See `backend.Backend`."""
        assert self._device is not None, "load comes first"
        assert self._watch is not None, "load comes first"
        began = time.monotonic()
        multiple, group = self.grid()
        refuse_wrong(request, multiple=multiple, group=group)
        refuse_picture(self.pictures(), given=picture is not None)
        self._device.reset_peak_memory()
        recorder = Recorder(request, progress, self._device)
        with self._lock:
            self._running = recorder
        self._watch.recorder = recorder
        try:
            frames = _as_frames(self.render(request, self._watch, picture))
        finally:
            self._watch.recorder = None
            with self._lock:
                self._running = None
        recorder.close()
        return Generation(
            frames=frames,
            seconds={**recorder.seconds, "total": time.monotonic() - began},
            expert_steps=recorder.expert_steps,
            peak_memory_bytes=self._device.peak_memory(),
        )

    def cancel(self, job: str) -> None:
        """See `backend.Backend`."""
        with self._lock:
            if self._running is not None and self._running.request.job == job:
                self._running.cancelled = True

    def healthy(self) -> bool:
        """Whether the device still finishes what it is given."""
        if self._device is None or self._watch is None:
            return False
        try:
            self._device.compute()
            self._device.synchronize()
        except Exception:
            return False
        return True

    def close(self) -> None:
        """See `backend.Backend`; harmless when repeated or when load failed."""
        self._watch = None
        self.shut()
        if self._device is not None:
            self._device.empty_cache()
            self._device = None

    def prepare(self, device: Device) -> dict[str, str]:
        """Import the library, refuse a wrong version of it; returns the versions."""
        raise NotImplementedError

    def open(self, model: str, options: dict[str, Any], device: Device) -> Any:
        """Load the weights; returns the pipeline."""
        raise NotImplementedError

    def dummy_run(self) -> None:
        """The library's own, if it has one."""

    def grid(self) -> tuple[int, int]:
        """What sides must be a multiple of, and how many frames one latent frame holds."""
        raise NotImplementedError

    def pictures(self) -> str:
        """Whether the loaded model's videos may or must start from one: none, optional or required."""
        return "none"

    def render(self, request: Generate, watch: PipelineWatch, picture: Picture | None) -> Any:
        """Run the pipeline; returns an array (frames, height, width, 3), or one with a 1 before that."""
        raise NotImplementedError

    def shut(self) -> None:
        """Let go of the pipeline; harmless when repeated or when load failed."""
        raise NotImplementedError


def refuse_options(options: dict[str, Any]) -> None:
    """Raise ValueError, naming every option that one pipeline in one process on one device cannot do.

    The rules of profiles refuse them before; this is for whoever comes without a profile.
    """
    possible: dict[str, tuple[Any, ...]] = {
        "devices": (1,),
        "executor": ("in_process",),
        "compile": ("off",),
        "quantization": (None, "none"),
        "attention_quantization": ("none",),
        "cache": ("none",),
        "attention": (None, "auto", "torch_sdpa"),
    }
    faults = [
        f"option {key} is {options[key]!r}, and this backend does only {allowed[-1]!r}"
        for key, allowed in possible.items()
        if options[key] not in allowed
    ]
    faults += [
        f"option parallel.{name} is {size}, and there is one device"
        for name, size in options["parallel"].items()
        if size != 1
    ]
    if faults:
        raise ValueError("; ".join(faults))


def _as_frames(video: Any) -> np.ndarray[Any, np.dtype[np.float32]]:
    import numpy as np  # noqa: PLC0415  by now the backend has imported far more

    frames: np.ndarray[Any, np.dtype[np.float32]] = np.asarray(video, dtype=np.float32)
    if frames.ndim == 5 and frames.shape[0] == 1:
        frames = frames[0]
    if frames.ndim != 4 or frames.shape[-1] != 3:
        raise RuntimeError(f"the pipeline returned an array of shape {frames.shape} instead of frames")
    return frames
