"""The platform that vllm 0.14 and vllm-omni 0.14 ask about their device, without vllm's compiled extension.

Both packages' own CUDA platforms import `vllm._C`, which does not load with torch 2.4.1 (another C++ ABI). An
out-of-tree platform needs none of it, and for one vllm chooses torch's own operators by itself:
`CustomOp.dispatch_forward` takes `forward_oot`, which is `forward_native`
(vllm/model_executor/custom_op.py), and `dispatch_unquantized_gemm` takes torch's linear
(vllm/model_executor/layers/utils.py). One class serves both because `OmniPlatform` is a `Platform`.

Import `upstream.prepare` first: it makes both packages importable.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import vllm.platforms as vllm_platforms
import vllm_omni.platforms as omni_platforms
from vllm.platforms.interface import PlatformEnum
from vllm_omni.platforms.interface import OmniPlatform, OmniPlatformEnum

from framekeeper.engine.backends.device import Device


class NativePlatform(OmniPlatform):  # type: ignore[misc]
    """What both packages' `current_platform` is; `device` answers what is asked of the device."""

    _enum = PlatformEnum.OOT
    # 0.14 has no word for out of tree. Unspecified is what takes torch's own operators there as well.
    _omni_enum = OmniPlatformEnum.UNSPECIFIED
    simple_compile_backend = "eager"
    device: ClassVar[Device]

    @classmethod
    def import_kernels(cls) -> None:
        """Import nothing. Upstream's method tries `vllm._C` and warns that it cannot."""

    @classmethod
    def get_diffusion_attn_backend_cls(cls, selected_backend: str | None, head_size: int) -> str:  # noqa: ARG003
        """Torch's own attention is the only one here; any other choice is a ValueError."""
        if selected_backend is not None and selected_backend.upper() not in {"TORCH_SDPA", "SDPA"}:
            raise ValueError(f"attention {selected_backend} does not exist on torch 2.4.1; set torch_sdpa")
        from framekeeper.engine.torch_241 import attention  # noqa: PLC0415  it asks for this platform

        attention.install()
        return attention.BACKEND

    @classmethod
    def supports_torch_inductor(cls) -> bool:
        """No: 0.14 compiles only the first of two experts, and falls back to eager in silence."""
        return False

    @classmethod
    def get_torch_device(cls, local_rank: int | None = None) -> torch.device:  # noqa: ARG003
        """The one device of this process."""
        return cls.device.torch_device

    @classmethod
    def get_device_count(cls) -> int:
        """One: this runtime's executor drives one device."""
        return 1

    @classmethod
    def set_device(cls, device: torch.device) -> None:
        """Nothing to select; `CudaDevice` has selected its card."""

    @classmethod
    def get_device_name(cls, device_id: int = 0) -> str:  # noqa: ARG003
        """See `Device`."""
        return cls.device.name()

    @classmethod
    def synchronize(cls) -> None:
        """See `Device`."""
        cls.device.synchronize()

    @classmethod
    def is_available(cls) -> bool:
        """Asked before the cache is emptied: the device was opened, so it is there."""
        return True

    @classmethod
    def empty_cache(cls) -> None:
        """See `Device`."""
        cls.device.empty_cache()

    @classmethod
    def get_free_memory(cls, device: torch.device | None = None) -> int:  # noqa: ARG003
        """See `Device`."""
        return cls.device.free_memory()

    @classmethod
    def inference_mode(cls) -> Any:
        """Torch's own."""
        return torch.inference_mode(mode=True)


class CpuPlatform(NativePlatform):
    """A CPU."""

    device_type = device_name = "cpu"
    dispatch_key = "CPU"
    dist_backend = "gloo"


class CudaPlatform(NativePlatform):
    """A card, with torch's own operators. Verified: cpu only."""

    device_type = device_name = "cuda"
    dispatch_key = "CUDA"
    # One rank in one process has nothing to exchange, so no NCCL has to come up.
    dist_backend = "gloo"


def install(device: Device) -> type[NativePlatform]:
    """Make it both packages' platform in this process; returns the class.

    Both keep theirs in a module variable that is filled at first use. It is filled here instead, because the
    search that would fill it imports vllm's CUDA platform where it finds a card.
    """
    platform = CpuPlatform if device.kind == "cpu" else CudaPlatform
    platform.device = device
    vllm_platforms._current_platform = platform()
    omni_platforms._current_omni_platform = platform()
    return platform
