"""A media directory on a volume of a few megabytes: refused before it is full, and never full."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from faulty import Start, final, found
from system import wait_for

pytestmark = pytest.mark.slow

MIB = 1 << 20
VOLUME, FREE = 5 * MIB, 4 * MIB


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "volume"
    path.mkdir()
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small volume")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={VOLUME}", "tmpfs", str(path)],
        check=False,
        capture_output=True,
        text=True,
    )
    if mounted.returncode:
        pytest.skip(f"a small volume cannot be mounted here: {mounted.stderr.strip()}")
    yield path
    subprocess.run(["umount", "--lazy", str(path)], check=True)


def test_jobs_are_refused_before_the_volume_is_full_and_those_accepted_are_delivered(
    start: Start, volume: Path
) -> None:
    system = start([], script={"step_seconds": 0.05}, media=volume, min_free_bytes=FREE)
    url = system.start_gateway()
    accepted: list[str] = []
    body = {"prompt": "a cat", "size": "128x128", "num_frames": 33, "num_inference_steps": 2}
    least = VOLUME
    with httpx.Client(base_url=url, timeout=20) as client:

        def refused() -> httpx.Response | None:
            nonlocal least
            answer = client.post("/v1/videos", json=body)
            least = min(least, shutil.disk_usage(volume).free)
            if answer.status_code == 200:
                accepted.append(answer.json()["id"])
                return None
            return answer

        answer = wait_for("a job is refused", refused, 60, every=0.01)
        assert (answer.status_code, answer.json()["error"]["code"]) == (507, "storage_full")
        assert "delete videos" in answer.json()["error"]["message"]
        assert len(accepted) >= 2
        for video_id in accepted:
            assert final(system, video_id, 60).state == "completed"
        least = min(least, shutil.disk_usage(volume).free)
        assert least >= FREE
        # Room again, once the owner has deleted what is not needed.
        (volume / "filler").write_bytes(b"x" * (shutil.disk_usage(volume).free - FREE // 2))
        assert client.post("/v1/videos", json=body).status_code == 507
        (volume / "filler").unlink()
        for video_id in accepted:
            assert client.delete(f"/v1/videos/{video_id}").status_code == 200
            assert not (volume / video_id).exists()
        again = client.post("/v1/videos", json=body)
        assert again.status_code == 200
        assert final(system, again.json()["id"]).state == "completed"
        assert found(system, again.json()["id"]).video_file is not None
