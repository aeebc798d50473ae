"""Two device groups of one host: each worker sees its own devices, directories and caches only."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from framekeeper.engine.device_lock import DeviceHeld, DeviceLock
from framekeeper.profiles.launch import Launch, resolve
from framekeeper.profiles.load import load_profile
from profile_samples import host

CONFIGS = Path(__file__).parents[2] / "configs" / "profiles"
TELL = "import json, os; print(json.dumps(dict(os.environ)), flush=True); input()"


def launches(directory: Path) -> list[Launch]:
    facts = host(
        cpu_count=4,
        inherited={"CUDA_VISIBLE_DEVICES": "0", "SECRET": "of the operator", "LANG": "C.UTF-8"},
        run_directory=directory / "run",
        cache_directory=directory / "cache",
        temporary_directory=directory / "tmp",
    )
    profile = load_profile("cpu-tiny", CONFIGS)
    return [resolve(profile, facts, group=group, groups=2) for group in (0, 1)]


def test_two_groups_run_side_by_side_and_share_nothing(tmp_path: Path) -> None:
    pair = launches(tmp_path)
    locks = tmp_path / "locks"
    held = [DeviceLock(locks, launch.devices, f"host-a group {launch.group}") for launch in pair]
    for lock in held:
        lock.acquire()
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", TELL],
            env=launch.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        for launch in pair
    ]
    try:
        seen = []
        for worker in workers:
            assert worker.stdout is not None
            seen.append(json.loads(worker.stdout.readline()))
        for launch, environment in zip(pair, seen, strict=True):
            # Python itself sets LC_CTYPE in a C locale.
            assert {k: v for k, v in environment.items() if k != "LC_CTYPE"} == launch.environment
            assert "SECRET" not in environment
        own = (
            "HOME",
            "TMPDIR",
            "TORCHINDUCTOR_CACHE_DIR",
            "TRITON_CACHE_DIR",
            "VLLM_CACHE_ROOT",
            "XDG_CACHE_HOME",
        )
        assert all(seen[0][name] != seen[1][name] for name in own)
        assert pair[0].devices == ("cpu-0",)
        assert pair[1].devices == ("cpu-1",)
        with pytest.raises(DeviceHeld, match="cpu-1 is held by host-a group 1"):
            DeviceLock(locks, pair[1].devices, "host-b group 0").acquire()
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()
        for lock in held:
            lock.release()
    with DeviceLock(locks, pair[1].devices, "host-b group 0"):
        pass
