"""The platform that vllm-omni's diffusion engine asks about its device, answered for a CPU.

Written against vllm-omni 0.30.0, `vllm_omni/platforms/interface.py`. An accelerator's memory is the
process's resident set here: there is no device allocator to ask.
"""

from __future__ import annotations

import os
import resource
from typing import Any

import psutil
import torch
from vllm_omni.platforms.interface import OmniPlatform, OmniPlatformEnum

from framekeeper.engine.cpu_platform import DEVICES_VARIABLE
from framekeeper.engine.cpu_platform.platform import CpuVllmPlatform


class CpuOmniPlatform(OmniPlatform, CpuVllmPlatform):  # type: ignore[misc]
    """What `vllm_omni.platforms.current_omni_platform` is in a CPU engine.

    vllm's `Platform.__getattr__` answers an attribute that `torch.cpu` lacks with None instead of an
    error, so each memory function that the engine calls has to exist here.
    """

    _omni_enum = OmniPlatformEnum.OOT

    # What the engine is made of.

    @classmethod
    def get_diffusion_attn_backend_cls(
        cls,
        selected_backend: str | None,
        head_size: int,  # noqa: ARG003
        allow_trtllm_default: bool = False,  # noqa: ARG003
    ) -> str:
        """Torch's own attention is the only one here; any other choice is a ValueError."""
        if selected_backend is not None and selected_backend.upper() not in {"TORCH_SDPA", "SDPA"}:
            raise ValueError(f"attention {selected_backend} does not run on a CPU; set torch_sdpa")
        return "framekeeper.engine.cpu_platform.attention.CpuSdpaBackend"

    @classmethod
    def supports_diffusion_dense_flash_attention(cls) -> bool:
        """No FlashAttention kernels exist for a CPU."""
        return False

    @classmethod
    def supports_torch_inductor(cls) -> bool:
        """Inductor compiles for a CPU (it needs a C++ compiler); whether it does is `enforce_eager`'s."""
        return True

    @classmethod
    def init_diffusion_worker_vllm_config(cls, vllm_config: Any) -> None:  # noqa: ARG003
        """First hook that runs in every worker process, in process or spawned: replace what cannot work."""
        # Not at the top: both import the worker, which asks for this platform while it is being made.
        from framekeeper.engine.cpu_platform import linear, output_loop  # noqa: PLC0415

        linear.install()
        output_loop.install()

    @classmethod
    def get_omni_ar_worker_cls(cls) -> str:
        """Abstract upstream; for language models, which this platform does not serve."""
        return "vllm_omni.worker.gpu_ar_worker.GPUARWorker"

    @classmethod
    def get_omni_generation_worker_cls(cls) -> str:
        """Abstract upstream; for language models, which this platform does not serve."""
        return "vllm_omni.worker.gpu_generation_worker.GPUGenerationWorker"

    @classmethod
    def get_default_stage_config_path(cls) -> str:
        """Abstract upstream; used by the orchestrator, which Framekeeper replaces."""
        return "vllm_omni/deploy"

    # Devices: as many as the supervisor says, all of them this CPU.

    @classmethod
    def get_torch_device(cls, local_rank: int | None = None) -> torch.device:  # noqa: ARG003
        """Every rank computes on the one CPU device."""
        return torch.device("cpu")

    @classmethod
    def get_device_count(cls) -> int:
        """Size of the group from FRAMEKEEPER_CPU_DEVICES, 1 by default."""
        return int(os.environ.get(DEVICES_VARIABLE, "1"))

    @classmethod
    def get_device_version(cls) -> str | None:
        """No driver or toolkit version."""
        return None

    @classmethod
    def set_device(cls, device: torch.device) -> None:
        """Nothing to select. vllm's CPU platform would pin threads to a NUMA node by device index."""

    @classmethod
    def synchronize(cls) -> None:
        """Work on a CPU is finished when the call returns."""

    # Memory.

    @classmethod
    def get_free_memory(cls, device: torch.device | None = None) -> int:  # noqa: ARG003
        """Bytes the host can still give."""
        return int(psutil.virtual_memory().available)

    @classmethod
    def get_device_memory(cls, device: torch.device | None = None) -> tuple[int, int]:  # noqa: ARG003
        """Free and total bytes of the host."""
        memory = psutil.virtual_memory()
        return int(memory.available), int(memory.total)

    @classmethod
    def memory_reserved(cls, device: torch.device | int | None = None) -> int:  # noqa: ARG003
        """Resident set of this process, bytes."""
        return int(psutil.Process().memory_info().rss)

    @classmethod
    def memory_allocated(cls, device: torch.device | int | None = None) -> int:
        """Same as `memory_reserved`: no allocator tells the two apart."""
        return cls.memory_reserved(device)

    @classmethod
    def max_memory_reserved(cls, device: torch.device | int | None = None) -> int:  # noqa: ARG003
        """Largest resident set since the process began, bytes (getrusage counts KiB on Linux)."""
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    @classmethod
    def max_memory_allocated(cls, device: torch.device | int | None = None) -> int:
        """Same as `max_memory_reserved`."""
        return cls.max_memory_reserved(device)

    @classmethod
    def reset_peak_memory_stats(cls, device: torch.device | int | None = None) -> None:
        """The kernel's peak cannot be reset."""

    @classmethod
    def get_current_memory_usage(cls, device: torch.device | None = None) -> float:  # noqa: ARG003
        """Resident set of this process, bytes, as the float that upstream's memory profiler expects."""
        return float(cls.memory_reserved())

    @classmethod
    def empty_cache(cls) -> None:
        """No caching allocator to empty."""
