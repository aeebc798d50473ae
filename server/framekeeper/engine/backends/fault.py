"""A backend that makes moving test pictures and breaks on order: fault injection, never in a shipped profile.

Its `model` is a JSON file, the script:

    {"step_seconds": 0.01, "load_seconds": 0, "memory_bytes": 0, "facts": {},
     "faults": [{"at": "step", "step": 3, "what": "die", "signal": 9, "job": null, "times": 1, "text": "…"}]}

`at` is load, warm_up, step, decode or idle (after `seconds` without a job). `what` is raise (an error with
`text`), hang, die (by `signal`), exit (with `code`), child (leaves a process that holds on), nan, black,
frozen, few_frames, grow (`bytes` more after every job), ignore_sigterm, flood (megabytes to stderr), refuse
(a client error with `text`), card (`how`, see fault_card.py). A fault fires `times` times in all (null:
always), counted in a file beside the script so that it holds across processes; `job` narrows it to ids that
contain this text, a `step` of null is any step. `when` narrows it to how the process was started: {"options":
{"compile": ["regional", "full"]}, "environment": {"NAME": "value", "OTHER": true, "THIRD": null}, "file":
"$TORCHINDUCTOR_CACHE_DIR/broken"} means one of these values for every option; that value, any value, or none
for every variable; and a file that is there. With a `probability` it fires only so often where it could; with
a `seed` in the script, the n-th process throws the same dice in every run.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from framekeeper.engine.backends import fault_card
from framekeeper.engine.backends.backend import (
    Generation,
    GenerationCancelled,
    Progress,
    RequestRefused,
    StepReport,
)

if TYPE_CHECKING:
    from framekeeper.engine.backends.backend import Picture
    from framekeeper.engine.protocol import Generate

#: The high-noise expert runs the first half of the steps.
EXPERTS = 2
Fault = dict[str, Any]


class FaultBackend:
    """See the module; as a `Backend` it keeps every contract that its script does not break."""

    def __init__(self) -> None:
        self._script: dict[str, Any] = {}
        self._path = Path()
        self._options: dict[str, Any] = {}
        self._cancelled: set[str] = set()
        self._job: str | None = None
        self._last_job = time.monotonic()
        self._grown: list[bytearray] = []
        self._dice = random.Random()  # noqa: S311  not for secrets

    def load(self, model: str, options: dict[str, Any], progress: Progress) -> dict[str, Any]:
        """Read the script; `options` are accepted as they are."""
        progress.phase("loading")
        self._path = Path(model)
        self._options = options
        self._script = json.loads(self._path.read_text())
        if "seed" in self._script:
            # Every process needs dice of its own: with the same ones all would end at the same place.
            self._dice.seed(f"{self._script['seed']}/{self._add_one('starts')}")
        time.sleep(self._script.get("load_seconds", 0))
        self._strike("load", None)
        progress.phase("dummy_run")
        threading.Thread(target=self._watch_idleness, daemon=True, name="idle faults").start()
        return {"backend": "fault", "options": options, **self._script.get("facts", {})}

    def generate(self, request: Generate, progress: Progress, picture: Picture | None = None) -> Generation:
        """Make a moving gradient, or what the script says; its first frame has a picture's mean colour."""
        self._job = request.job
        if request.job == "warm-up":
            self._strike("warm_up", request)
        progress.phase("text_encoding")
        progress.phase("denoising")
        started = time.monotonic()
        try:
            steps = self._denoise(request, progress)
            progress.phase("decoding")
            frames = self._decode(request, picture)
        finally:
            self._cancelled.discard(request.job)
            self._job = None
            self._last_job = time.monotonic()
        return Generation(
            frames=frames,
            seconds={"total": time.monotonic() - started},
            expert_steps=steps,
            peak_memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        )

    def cancel(self, job: str) -> None:
        """Stop that job before its next step."""
        if job == self._job:
            self._cancelled.add(job)

    def healthy(self) -> bool:
        """What the script says, else no: an engine that failed is not trusted."""
        return bool(self._script.get("healthy", False))

    def close(self) -> None:
        """There is nothing to release."""

    def _denoise(self, request: Generate, progress: Progress) -> dict[int, int]:
        count = request.num_inference_steps
        ran = dict.fromkeys(range(EXPERTS), 0)
        expert: int | None = None
        seconds = self._script.get("step_seconds", 0.01)
        for step in range(count):
            progress.step(
                StepReport(
                    step=step,
                    steps=count,
                    seconds=seconds,
                    memory_bytes=self._script.get("memory_bytes", 0),
                    expert=expert,
                )
            )
            if request.job in self._cancelled:
                raise GenerationCancelled(step)
            self._strike("step", request, step=step)
            expert = min(EXPERTS - 1, step * EXPERTS // count)
            ran[expert] += 1
            time.sleep(seconds)
        progress.step(StepReport(step=count, steps=count, seconds=seconds, memory_bytes=0, expert=expert))
        return ran

    def _decode(self, request: Generate, picture: Picture | None) -> np.ndarray[Any, np.dtype[np.float32]]:
        frames = gradient(request.num_frames, request.height, request.width)
        if picture is not None:
            frames[0] = picture.mean(axis=(0, 1)) / 255
        fault = self._strike("decode", request)
        match fault and fault["what"]:
            case "nan":
                frames[:] = np.nan
            case "black":
                frames[:] = 0
            case "frozen":
                frames[:] = 0.5
            case "few_frames":
                frames = frames[:-4]
        return frames

    def _watch_idleness(self) -> None:
        while True:
            time.sleep(0.02)
            if self._job is None:
                self._strike("idle", None, idle=time.monotonic() - self._last_job)

    def _strike(
        self, at: str, request: Generate | None, *, step: int | None = None, idle: float = 0
    ) -> Fault | None:
        """Carry out the first fault that is due here; returns it when the caller has to do the rest."""
        for number, fault in enumerate(self._script.get("faults", [])):
            due = (
                fault["at"] == at
                and (step is None or fault.get("step", 0) in (step, None))
                and (at != "idle" or idle >= fault.get("seconds", 0))
                and (fault.get("job") is None or (request is not None and fault["job"] in request.job))
                # A fault that is not about the warm-up must let the engine get ready first.
                and (at == "warm_up" or request is None or request.job != "warm-up" or fault.get("warm_up"))
                and _started_so(fault.get("when", {}), self._options)
                and self._dice.random() < fault.get("probability", 1)
            )
            if due and self._count(number, fault.get("times", 1)):
                _carry_out(fault, self._grown)
                return fault  # type: ignore[no-any-return]  # from JSON
        return None

    def _count(self, number: int, times: int | None) -> bool:
        """Whether the fault may fire once more; counted on disk, since it may end this process."""
        return times is None or self._add_one(str(number), times) is not None

    def _add_one(self, name: str, most: int | None = None) -> int | None:
        """Count up in the file beside the script, to `most` at most; the new count, None for no more."""
        with self._path.with_suffix(".fired").open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            fired = json.loads(file.read() or "{}")
            count: int = fired.get(name, 0) + 1
            if most is not None and count > most:
                return None
            file.truncate(0)
            file.write(json.dumps(fired | {name: count}))
            return count


def gradient(frames: int, height: int, width: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """A slowly moving gradient, float32 (frames, height, width, 3) in 0..1."""
    t = np.linspace(0, 1, frames, dtype=np.float32)[:, None, None, None]
    y = np.linspace(0, 1, height, dtype=np.float32)[None, :, None, None]
    x = np.linspace(0, 1, width, dtype=np.float32)[None, None, :, None]
    c = np.array([0.0, 0.33, 0.66], dtype=np.float32)
    picture: np.ndarray[Any, np.dtype[np.float32]] = np.abs(np.mod(x + y + t + c, 2) - 1).astype(np.float32)
    return picture


def _started_so(when: dict[str, Any], options: dict[str, Any]) -> bool:
    """Whether this process was started as a fault's `when` says; see the module."""
    file = os.path.expandvars(when.get("file", ""))
    return (
        all(options.get(key) in values for key, values in when.get("options", {}).items())
        and all(
            os.environ.get(name) == value or (value is True and name in os.environ)
            for name, value in when.get("environment", {}).items()
        )
        and (not file or Path(file).exists())
    )


def _carry_out(fault: Fault, grown: list[bytearray]) -> None:
    text = fault.get("text", "fault injected")
    match fault["what"]:
        case "raise":
            print(text, file=sys.stderr, flush=True)  # noqa: T201  as engines do before they raise
            raise RuntimeError(text)
        case "refuse":
            raise RequestRefused(text, param=fault.get("param"))
        case "hang":
            time.sleep(fault.get("seconds", 3600))
        case "die":
            print(text, file=sys.stderr, flush=True)  # noqa: T201
            os.kill(os.getpid(), fault.get("signal", signal.SIGKILL))
            time.sleep(5)
        case "card":
            fault_card.strike(fault["how"], fault.get("gigabytes", 0))
        case "exit":
            os._exit(fault.get("code", 1))
        case "child":
            subprocess.Popen(
                [sys.executable, "-c", "import time; held = bytearray(50_000_000); time.sleep(3600)"],
                start_new_session=True,
            )
        case "grow":
            grown.append(bytearray(fault.get("bytes", 10_000_000)))
        case "ignore_sigterm":
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        case "flood":
            for _ in range(fault.get("lines", 100_000)):
                sys.stderr.write(text + " " * 200 + "\n")
