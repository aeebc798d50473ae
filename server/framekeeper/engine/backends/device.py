"""The one device of a backend in the worker's own process: a CPU or a card, asked the same things."""

# ruff: noqa: PLC0415  torch is imported when a device is opened, which `load` reports as a phase.

from __future__ import annotations

import resource
from typing import TYPE_CHECKING, Any, Protocol

import psutil

if TYPE_CHECKING:
    import torch


class Device(Protocol):
    """`kind` is "cpu" or "cuda"; all sizes are bytes."""

    kind: str
    torch_device: torch.device

    def name(self) -> str:
        """What the device is called."""

    def synchronize(self) -> None:
        """Return when all queued work is finished; raises what it raised."""

    def memory(self) -> int:
        """What this process's allocator holds now."""

    def peak_memory(self) -> int:
        """The most it held since `reset_peak_memory`."""

    def reset_peak_memory(self) -> None:
        """Begin a new peak, where the device can."""

    def free_memory(self) -> int:
        """What the device can still give."""

    def empty_cache(self) -> None:
        """Give cached, unused blocks back."""

    def compute(self) -> None:
        """Queue a little work; raises when the device takes none."""


class CpuDevice:
    """The CPU. An allocator's memory is the process's resident set: there is nothing else to ask."""

    kind = "cpu"

    def __init__(self) -> None:
        import torch

        self._torch: Any = torch
        self.torch_device = torch.device("cpu")

    def name(self) -> str:
        """See `Device`; torch knows no name for a CPU."""
        return "cpu"

    def synchronize(self) -> None:
        """See `Device`; work on a CPU is finished when the call returns."""

    def memory(self) -> int:
        """See `Device`."""
        return int(psutil.Process().memory_info().rss)

    def peak_memory(self) -> int:
        """See `Device`; getrusage counts KiB on Linux."""
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def reset_peak_memory(self) -> None:
        """See `Device`; the kernel's peak cannot be reset."""

    def free_memory(self) -> int:
        """See `Device`."""
        return int(psutil.virtual_memory().available)

    def empty_cache(self) -> None:
        """See `Device`; there is no cache."""

    def compute(self) -> None:
        """See `Device`."""
        self._torch.ones(8, device=self.torch_device).sum()


class CudaDevice:
    """The first card that this process sees; the supervisor lets it see its own only."""

    kind = "cuda"

    def __init__(self) -> None:
        import torch

        if not torch.cuda.is_available():
            raise RuntimeError("device is cuda, but torch finds no card")
        self._torch: Any = torch
        self._cuda: Any = torch.cuda
        self._cuda.set_device(0)
        self.torch_device = torch.device("cuda", 0)

    def name(self) -> str:
        """See `Device`."""
        return str(self._cuda.get_device_name(0))

    def synchronize(self) -> None:
        """See `Device`."""
        self._cuda.synchronize()

    def memory(self) -> int:
        """See `Device`."""
        return int(self._cuda.memory_reserved())

    def peak_memory(self) -> int:
        """See `Device`."""
        return int(self._cuda.max_memory_reserved())

    def reset_peak_memory(self) -> None:
        """See `Device`."""
        self._cuda.reset_peak_memory_stats()

    def free_memory(self) -> int:
        """See `Device`."""
        return int(self._cuda.mem_get_info()[0])

    def empty_cache(self) -> None:
        """See `Device`."""
        self._cuda.empty_cache()

    def compute(self) -> None:
        """See `Device`."""
        self._torch.ones(8, device=self.torch_device).sum()


def open_device(kind: str) -> Device:
    """The device of that kind; raises RuntimeError where torch finds none."""
    return CpuDevice() if kind == "cpu" else CudaDevice()
