"""The profiles that the bench runs: h200 and variants, at few steps, on its own checkpoint."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import yaml

PROJECT = Path(__file__).resolve().parent.parent.parent

#: At shift 3 the second of two steps starts at noise 0.75, below the boundary 0.875: both experts run.
SMALL: dict[str, Any] = {
    "extends": "h200",
    "defaults": {"size": "832x480", "num_inference_steps": 6, "flow_shift": 3.0},
    "admits": {"size": "832x480"},
    "warm_up": {"num_inference_steps": 2},
}
#: As shipped, but for a warm-up of two steps instead of four.
SHIPPED: dict[str, Any] = {"defaults": {"flow_shift": 3.0}, "warm_up": {"num_inference_steps": 2}}
_PLAIN: dict[str, Any] = {"compile": "off", "fallbacks": []}
_LAYERS: dict[str, Any] = {**_PLAIN, "offload": "layerwise", "host": {"memory": "100GiB"}}

#: Whole systems, by run.py.
VARIANTS: dict[str, dict[str, Any]] = {
    "bench-compiled": {},
    "bench-eager": _PLAIN,
    "bench-expandable": {**_PLAIN, "allocator": {"expandable_segments": True}},
    "bench-async": {**_LAYERS, "offload_prefetch": "async"},
    "bench-sync": {**_LAYERS, "offload_prefetch": "sync"},
}

#: Shipped profiles by the memory in GiB of the card that a filler makes of this one, and their videos.
CARDS: dict[int, tuple[str, str]] = {
    80: ("h100-80g", "832x480"),
    48: ("l40s-48g", "1280x720"),
    32: ("rtx5090-32g", "832x480"),
    24: ("rtx4090-24g", "832x480"),
}

#: What upstream does when nothing is set: eager, FlashAttention 3, decoding in one piece.
_UPSTREAM: dict[str, Any] = {**_PLAIN, "vae": {"tiling": False, "fast_path": "lossless"}}
_BOTH = [("832x480", 4), ("1280x720", 2)]
_RISK = {"accept_risk": {"quantization-with-compile": "this is the measurement"}}
_EIGHT: dict[str, Any] = {"quantization": "fp8", "attention_quantization": "fp8", "fallbacks": [], **_RISK}

#: Engines alone, one expert, by variant.py: what changes and the videos that are timed.
ENGINES: dict[str, dict[str, Any]] = {
    "engine-upstream": {"profile": _UPSTREAM, "videos": _BOTH},
    "engine-h200": {"profile": {"fallbacks": []}, "videos": _BOTH},
    "engine-fp8-linear": {
        "profile": {**_EIGHT, "attention_quantization": "none"},
        "videos": [("832x480", 4)],
    },
    "engine-fp8-attention": {"profile": {**_EIGHT, "quantization": "none"}, "videos": [("832x480", 4)]},
    "engine-fast": {"profile": _EIGHT, "videos": _BOTH},
    # The longer video alone, as shipped: its blocks are compiled for its own shape.
    "large-upstream": {"profile": _UPSTREAM, "videos": [("1280x720", 2)]},
    "large-h200": {"profile": {"fallbacks": []}, "videos": [("1280x720", 2)], "trace": "1280x720"},
    "large-fast": {"profile": _EIGHT, "videos": [("1280x720", 2)], "trace": "1280x720"},
    "large-fast-rotary": {
        "profile": _EIGHT,
        "changes": ["own_shape_first", "sampled_mean", "fused_rotary"],
        "in_turn": True,
        "videos": [("1280x720", 2)],
        "trace": "1280x720",
    },
    "large-fast-tuned": {
        "profile": _EIGHT,
        "changes": ["own_shape_first", "sampled_mean", "fused_rotary"],
        "environment": {"TORCHINDUCTOR_MULTI_KERNEL": "1", "TORCHINDUCTOR_COORDINATE_DESCENT_TUNING": "1"},
        "in_turn": True,
        "videos": [("1280x720", 2)],
        "trace": "1280x720",
    },
    "large-h200-rotary": {
        "profile": {"fallbacks": []},
        "changes": ["own_shape_first", "fused_rotary"],
        "in_turn": True,
        "videos": [("1280x720", 2)],
    },
    "large-cudnn": {
        "profile": {"fallbacks": []},
        "options": {"attention": "cudnn_attn"},
        "videos": [("1280x720", 2)],
    },
    "engine-fast-eager": {"profile": {**_EIGHT, "compile": "off"}, "videos": [("832x480", 4)]},
    "engine-cache": {"profile": {**_UPSTREAM, "cache": "cache_dit"}, "videos": [("832x480", 10)]},
    "engine-layers": {
        "profile": {**_LAYERS, "vae": {"tiling": True}},
        "videos": [("832x480", 2), ("1280x720", 2)],
    },
    "engine-layers-sync": {
        "profile": {**_LAYERS, "offload_prefetch": "sync", "vae": {"tiling": True}},
        "videos": [("832x480", 2)],
    },
    "engine-model": {
        "profile": {**_PLAIN, "offload": "model", "host": {"memory": "100GiB"}},
        "videos": [("832x480", 2)],
    },
}


def write(directory: Path, model: Path, base: str = "h200") -> Path:
    """All profiles of the project and those of the bench in `directory`; returns it."""
    shutil.copytree(PROJECT / "configs" / "profiles", directory, dirs_exist_ok=True)
    made = {name: SMALL | changes for name, changes in VARIANTS.items()}
    made |= {f"shipped-{name}": SHIPPED | {"extends": name} | _RISK for name in ("h200", "h200-fast")}
    host = {"host": {"compute_capabilities": [9.0]}}  # the card's own, which a filler does not change
    made |= {f"card-{gib}": SHIPPED | {"extends": name} | host for gib, (name, _) in CARDS.items()}
    one = {"extends": "h200", "defaults": {"boundary_ratio": 0.0}}
    made |= {name: one | each["profile"] for name, each in ENGINES.items()}
    for name, changes in made.items():
        if base != "h200":  # a rehearsal on a CPU
            kept = ("allocator", "offload", "offload_prefetch", "vae", "cache")
            changes = {key: changes[key] for key in kept if key in changes} | {"extends": base}  # noqa: PLW2901
            if name in ENGINES:
                changes["defaults"] = one["defaults"]
        (directory / f"{name}.yaml").write_text(yaml.safe_dump(changes | {"model": str(model)}))
    return directory


def write_fault(directory: Path, name: str, script: Path) -> None:
    """A profile of the fault backend on a card."""
    seconds = {"load_seconds": 60, "step_seconds": 10, "decode_seconds": 10, "job_seconds": 60}
    profile = {
        "serves": "test-model",
        "runtime": "omni-0.30-cu130",
        "backend": "fault",
        "model": str(script),
        "defaults": {"size": "64x64", "num_frames": 9, "num_inference_steps": 10, "guidance_scale": 4.0}
        | {"guidance_scale_2": 3.0, "boundary_ratio": 0.875, "flow_shift": 3.0},
        "admits": {"size": "64x64", "num_frames": 9},
        "warm_up": {"num_inference_steps": 4, "deadline_seconds": 30},
        "deadlines": seconds,
    }
    (directory / f"{name}.yaml").write_text(yaml.safe_dump(profile))
