"""Who holds a card: read from the driver, so that a restart does not meet the memory of a dead engine.

After a kill the driver needs up to seconds to take the memory back, and containers have been seen to leave
a process behind that holds 22 GB (https://github.com/vllm-project/vllm-omni/issues/2317).
"""

from __future__ import annotations

import asyncio
import csv
import subprocess
from collections.abc import Collection
from dataclasses import dataclass
from io import StringIO

_MIB = 1024**2


@dataclass(frozen=True, kw_only=True)
class Holder:
    """A process on a card, as the driver sees it: its pid is the host's, which a container may not know."""

    device: str
    pid: int
    name: str
    memory_bytes: int | None

    def __str__(self) -> str:
        held = f" ({self.memory_bytes / 1024**3:.1f} GiB)" if self.memory_bytes is not None else ""
        return f"process {self.pid} {self.name}{held} on {self.device}"


def parse(text: str, devices: Collection[str]) -> list[Holder]:
    """Holders of these devices, from nvidia-smi's CSV of compute processes without header and units."""
    holders = []
    for row in csv.reader(StringIO(text), skipinitialspace=True):
        if len(row) == 4 and row[0] in devices and row[1].isdigit():
            memory = int(row[3]) * _MIB if row[3].isdigit() else None
            holders.append(Holder(device=row[0], pid=int(row[1]), name=row[2], memory_bytes=memory))
    return holders


def holders(devices: Collection[str], timeout: float = 20.0) -> list[Holder]:
    """Compute processes on these cards now; none where there is no driver, or it does not answer."""
    command = [
        "nvidia-smi",
        "--query-compute-apps=gpu_uuid,pid,process_name,used_memory",
        "--format=csv,noheader,nounits",
    ]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return parse(answer.stdout, devices)


async def wait_free(devices: Collection[str], *, seconds: float, every: float = 0.5) -> list[Holder]:
    """Wait until nobody holds the cards, at most so long; returns who still does."""
    cards = [device for device in devices if not device.startswith("cpu-")]
    if not cards:
        return []
    deadline = asyncio.get_running_loop().time() + seconds
    while found := await asyncio.to_thread(holders, cards):
        if asyncio.get_running_loop().time() > deadline:
            return found
        await asyncio.sleep(every)
    return []
