"""Layerwise offload without a second stream, for cards on which the overlapping copy crashes.

vllm-omni's `LayerwiseOffloadHook` (vllm_omni/diffusion/offloader/layerwise_backend.py, 0.30.0) allocates and
fills the next block's memory on a copy stream while the current block computes. Its `non_blocking=False`
still uses that stream. With the changes below the memory is allocated *and* copied on the compute stream,
and the host waits: slower, but nothing crosses streams. Model offload copies on the compute stream already.
"""

from __future__ import annotations

import functools
from typing import Any

from vllm_omni.platforms import current_omni_platform

HOOK = "LayerwiseOffloadHook"


def make_blocking(pipeline: Any) -> int:
    """Change every layerwise hook of a loaded pipeline; returns how many there were.

    Raises RuntimeError when a hook has not the parts that are changed: another version, not silently async.
    """
    changed = 0
    for module in pipeline.modules():
        registry = getattr(module, "_hook_registry", None)
        for hook in getattr(registry, "_hooks", {}).values():
            if type(hook).__name__ != HOOK:
                continue
            if not hasattr(hook, "copy_stream") or not hasattr(hook, "prefetch_layer"):
                raise RuntimeError(
                    f"{HOOK} of this vllm-omni has no copy_stream; offload_prefetch sync is unknown"
                )
            hook.copy_stream = current_omni_platform.current_stream()
            hook.prefetch_layer = functools.partial(_prefetch, hook.prefetch_layer)
            changed += 1
    return changed


def _prefetch(original: Any, non_blocking: bool = True) -> None:  # noqa: ARG001
    """Stands in for `prefetch_layer`; the caller's wish to overlap is not granted."""
    original(non_blocking=False)
