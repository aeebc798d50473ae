"""vllm's own CPU platform, without the compiled kernels that a CUDA build of vllm does not have."""

from __future__ import annotations

from vllm.platforms.cpu import CpuPlatform


class CpuVllmPlatform(CpuPlatform):  # type: ignore[misc]
    """What `vllm.platforms.current_platform` is in a CPU engine."""

    @classmethod
    def import_kernels(cls) -> None:
        """Import nothing: `vllm._C` of the published wheel needs CUDA libraries and cannot be loaded here.

        Upstream's method tries, catches the error and warns in every process; the operators it would
        register are then missing anyway (see linear.py).
        """
