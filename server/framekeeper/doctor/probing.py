"""Run the probes: each in a fresh process of the engine's Python, with a worker's environment and a deadline.

Nothing of the engine's is touched: home, temporary files and caches lie in a directory that goes afterwards.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from framekeeper.doctor.probes.answer import MARK
from framekeeper.doctor.readings import Probed, Readings, gib
from framekeeper.profiles.launch import Launch
from framekeeper.profiles.memory import block_bytes, budget, offloaded_bytes
from framekeeper.profiles.schema import Profile
from framekeeper.profiles.wan import architecture

_PACKAGE = "framekeeper.doctor.probes"
# A cold import of vllm from a slow disk takes minutes; the allocator fills a whole card.
_SECONDS = {"extensions": 180.0, "attention": 180.0, "allocator": 240.0, "pinned": 240.0}
_SECONDS_ELSE = 120.0
_MIB = 1024**2
_GIB = 1024**3
# Of the host's memory this much is left alone by whatever is tried.
_LEFT = 2 * _GIB
# A card in use by others keeps more than its driver's own few hundred MiB.
_IN_USE = 2 * _GIB
_WORKING = ("activations", "allocator's slack", "VAE decode")
_HEAD_ROOM = "head-room"
# A process without CUDA: interpreter, torch, vllm-omni and encoder, as measured with the small checkpoint.
_CPU_PROCESS = 1_500 * _MIB


@dataclasses.dataclass(frozen=True, kw_only=True)
class Probe:
    """One thing to try; `reason` says why it is not tried, empty where it is."""

    name: str
    options: dict[str, Any]
    reason: str = ""


def planned(profile: Profile, launch: Launch, readings: Readings) -> list[Probe]:
    """What is worth trying for this profile on this host."""
    device = profile.devices.kind
    omni = profile.backend == "vllm_omni" and profile.runtime.startswith("omni-")
    extensions = omni and device == "cuda"
    modules = ["torch", "numpy", "av", "safetensors", "framekeeper.engine.protocol"]
    modules += ["vllm", "vllm_omni"] if omni else ["diffusers"]
    probes = [
        Probe(
            name="extensions",
            options={"device": device, "modules": modules, "extensions": extensions},
        ),
        Probe(name="kernels", options={"device": device, "cutlass": extensions}),
        Probe(name="attention", options={"device": device, "omni": omni, "dtype": profile.dtype}),
        Probe(name="compiling", options={"device": device, "compile": profile.compile != "off"}),
        _allocator(profile, launch, readings),
    ]
    pinned = offloaded_bytes(profile) if profile.offload_pin_memory else 0
    if device == "cuda" and pinned:
        probes.append(_pinned(pinned, readings))
    return probes


def _allocator(profile: Profile, launch: Launch, readings: Readings) -> Probe:
    needed = budget(profile)
    model = architecture(profile)
    if profile.devices.kind == "cuda":
        lines = needed.lines if needed else ()
        working = sum(line.bytes for line in lines if line.name in _WORKING)
        weights = sum(line.bytes for line in lines if line.name not in (*_WORKING, _HEAD_ROOM))
        reason = "" if needed else "the memory model does not know this model"
        used = [int(row["memory.used"]) * _MIB for row in readings.rows() if row["memory.used"].isdigit()]
        if max(used, default=0) > _IN_USE:
            reason = f"somebody, perhaps this engine, holds {gib(max(used))} of a card; stop it to try"
        piece = block_bytes(profile, model) if model else 64 * _MIB
    else:
        weights, working = host_need(profile, Path(launch.model))
        piece = 64 * _MIB
        free = readings.memory_available
        short = free is not None and weights + working + _CPU_PROCESS > free
        reason = (
            f"{gib(weights + working + _CPU_PROCESS)} would be taken, and only {gib(free or 0)} of host "
            "memory is free"
            if short
            else ""
        )
    options = {"device": profile.devices.kind, "weights": weights, "working": working, "piece": piece}
    return Probe(name="allocator", options=options, reason=reason)


def host_need(profile: Profile, directory: Path) -> tuple[int, int]:
    """Bytes of host memory that an engine on a CPU holds: the checkpoint's files, and what a video takes.

    The second is the frames as decoded in float32, converted and encoded: four times one copy.
    """
    weights = sum(path.stat().st_size for path in directory.glob("*/*.safetensors"))
    return weights, 4 * profile.admits.area * profile.admits.num_frames * 3 * 4


def _pinned(wanted: int, readings: Readings) -> Probe:
    free = readings.memory_available
    reason = ""
    if free is not None and wanted > free - _LEFT:
        reason = f"{gib(wanted)} would be page-locked, and only {gib(free)} of host memory is free"
    return Probe(name="pinned", options={"bytes": wanted, "piece": _GIB}, reason=reason)


def run_probes(profile: Profile, launch: Launch, readings: Readings, python: Path) -> tuple[Probed, ...]:
    """What all planned probes told. Takes half a minute on a CPU, and longer where weights fill a card."""
    found: list[Probed] = []
    for probe in planned(profile, launch, readings):
        if probe.reason:
            found.append(Probed(probe=probe.name, part="", ok=False, tried=False, seen=probe.reason))
        else:
            found += run_probe(python, launch.environment, probe.name, probe.options)
    return tuple(found)


def run_probe(
    python: Path,
    environment: dict[str, str],
    name: str,
    options: dict[str, Any],
    seconds: float | None = None,
) -> list[Probed]:
    """What one probe told; the way it ended is a result, too, where it did not end by itself with 0."""
    deadline = seconds or _SECONDS.get(name, _SECONDS_ELSE)
    with tempfile.TemporaryDirectory(prefix="framekeeper-doctor-") as directory:
        process = subprocess.Popen(
            [python, "-P", "-m", f"{_PACKAGE}.{name}"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            errors="replace", start_new_session=True, cwd=directory, env=_private(environment, directory),
        )  # fmt: skip
        late = False
        try:
            output, words = process.communicate(json.dumps(options), timeout=deadline)
        except subprocess.TimeoutExpired:
            late = True
        finally:
            # Whatever the probe started lives in its group; a group that is gone is no fault.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        if late:
            output, words = process.communicate()
    found = [_parsed(name, line) for line in output.splitlines() if line.startswith(MARK)]
    if late:
        found.append(
            Probed(probe=name, part="end", ok=False, seen=f"it was not done within {deadline:.0f} s")
        )
    elif process.returncode:
        found.append(Probed(probe=name, part="end", ok=False, seen=_end(process.returncode, words)))
    return found


def _private(environment: dict[str, str], directory: str) -> dict[str, str]:
    """The worker's environment, with every directory of the engine's own replaced by one of the probe's."""
    own = {"HOME", "TMPDIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "CUDA_CACHE_PATH"}
    own |= {"VLLM_CACHE_ROOT", "XDG_CACHE_HOME"}
    return {**environment, **dict.fromkeys(own, directory)}


def _parsed(name: str, line: str) -> Probed:
    return Probed(probe=name, **json.loads(line.removeprefix(MARK)))


def _end(status: int, words: str) -> str:
    last = next((line.strip() for line in reversed(words.splitlines()) if line.strip()), "no last words")
    how = f"exit status {status}" if status > 0 else signal.Signals(-status).name
    return f"the process ended with {how}: {last[:400]}"
