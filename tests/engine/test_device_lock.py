"""A device belongs to one engine of the host, across processes and containers."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from framekeeper.engine.device_lock import DeviceHeld, DeviceLock, lock_path

HOLD = """
import sys, time
from pathlib import Path
from framekeeper.engine.device_lock import DeviceLock
lock = DeviceLock(Path(sys.argv[1]), sys.argv[2].split(","), "first-engine")
lock.acquire()
print("held", flush=True)
time.sleep(60)
"""


def hold(directory: Path, devices: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(directory), devices], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_second_engine_is_refused_and_told_who_holds_the_device(tmp_path: Path) -> None:
    process = hold(tmp_path, "GPU-aaaa,GPU-bbbb")
    try:
        with pytest.raises(DeviceHeld, match=rf"GPU-bbbb is held by first-engine \(pid {process.pid} "):
            DeviceLock(tmp_path, ["GPU-bbbb", "GPU-cccc"], "second-engine").acquire()
        with DeviceLock(tmp_path, ["GPU-cccc"], "second-engine"):
            pass
    finally:
        process.kill()
        process.wait()


def test_killed_holder_frees_its_devices(tmp_path: Path) -> None:
    process = hold(tmp_path, "cpu-0")
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert lock_path(tmp_path, "cpu-0").exists()
    with DeviceLock(tmp_path, ["cpu-0"], "second-engine"):
        pass


def test_group_gets_all_its_devices_or_none(tmp_path: Path) -> None:
    with DeviceLock(tmp_path, ["cpu-1"], "one"):
        with pytest.raises(DeviceHeld):
            DeviceLock(tmp_path, ["cpu-0", "cpu-1"], "both").acquire()
        with DeviceLock(tmp_path, ["cpu-0"], "other"):
            pass


def test_worker_does_not_inherit_the_lock(tmp_path: Path) -> None:
    with DeviceLock(tmp_path, ["cpu-0"], "parent"):
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(30)"], close_fds=False)
    try:
        # The kernel resumes the parent of an exec a moment before it closes the child's descriptors.
        for _ in range(100):
            with contextlib.suppress(DeviceHeld), DeviceLock(tmp_path, ["cpu-0"], "next"):
                break
            time.sleep(0.01)
        else:
            pytest.fail("the child holds the lock")
    finally:
        child.kill()
        child.wait()


def test_name_that_is_a_path_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not the name of a device"):
        lock_path(tmp_path, "../cpu-0")
