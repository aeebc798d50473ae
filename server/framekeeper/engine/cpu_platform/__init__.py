"""An out-of-tree platform for vllm and vllm-omni, so that the stock engine runs on a CPU.

vllm-omni 0.30.0 ships platforms for accelerators only, and the published vllm wheel is a CUDA build. Both
packages look for platforms in entry points (`vllm.platform_plugins`, `vllm_omni.platform_plugins`); the two
functions below are those entry points. They answer only when the supervisor chose the CPU, so that the same
environment can also hold a GPU engine.

This package is imported in every process of an engine, including the ones that an executor spawns. Nothing
here imports torch or vllm before it is asked for.
"""

from __future__ import annotations

import os

DEVICE_VARIABLE = "FRAMEKEEPER_DEVICE"
DEVICES_VARIABLE = "FRAMEKEEPER_CPU_DEVICES"


def chosen() -> bool:
    """Whether the supervisor asked for the CPU (environment variable FRAMEKEEPER_DEVICE)."""
    return os.environ.get(DEVICE_VARIABLE) == "cpu"


def vllm_platform() -> str | None:
    """Entry point `vllm.platform_plugins`: path of the platform class, or None to stand aside.

    vllm calls it in every process before anything of it imports torchvision, hence the definitions here.
    """
    if not chosen():
        return None
    from framekeeper.engine.cpu_platform.torchvision_schema import predefine  # noqa: PLC0415 imports torch

    predefine()
    return "framekeeper.engine.cpu_platform.platform.CpuVllmPlatform"


def omni_platform() -> str | None:
    """Entry point `vllm_omni.platform_plugins`: path of the platform class, or None to stand aside."""
    return "framekeeper.engine.cpu_platform.omni.CpuOmniPlatform" if chosen() else None
