"""Profiles and hosts to test with: a legal one, and changes to it."""

from __future__ import annotations

from typing import Any

from framekeeper.profiles.facts import Card, HostFacts
from framekeeper.profiles.fallbacks import merge
from framekeeper.profiles.schema import Profile

GIB = 1024**3

A14B: dict[str, Any] = {
    "name": "sample",
    "serves": "wan2.2-t2v-a14b",
    "runtime": "omni-0.30-cu130",
    "model": "var/models/Wan2.2-T2V-A14B-Diffusers",
    "defaults": {
        "size": "832x480",
        "num_frames": 81,
        "num_inference_steps": 40,
        "guidance_scale": 4.0,
        "guidance_scale_2": 3.0,
        "boundary_ratio": 0.875,
        "flow_shift": 12.0,
    },
    "admits": {"size": "832x480", "num_frames": 81, "num_inference_steps": 50},
    "warm_up": {"deadline_seconds": 600},
    "deadlines": {"load_seconds": 600, "step_seconds": 60, "decode_seconds": 60, "job_seconds": 3600},
}


def profile(**changes: Any) -> Profile:
    """The sample with the given sections or values changed."""
    return Profile.model_validate(merge(A14B, changes))


def card(index: int = 0, capability: str = "9.0", memory: int = 140 * GIB) -> Card:
    """One card of an H200's size."""
    return Card(uuid=f"GPU-{index:04d}", name="NVIDIA H200", capability=capability, memory_bytes=memory)


def host(**changes: Any) -> HostFacts:
    """A plain Linux host with one H200 and plenty of everything."""
    facts: dict[str, Any] = {
        "cards": (card(),),
        "cpu_count": 16,
        "memory_bytes": 512 * GIB,
        "shm_bytes": 64 * GIB,
        "driver": "580.95.05",
        "wsl": False,
        "host_ipc": False,
        **changes,
    }
    return HostFacts(**facts)
