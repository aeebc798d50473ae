"""vllm-omni's own server on the same CPU runtime, checkpoint and machine, for the same figures.

The runtime's lock leaves out what only that server imports, so an environment of its own is laid over it in a
temporary directory; the runtime itself is not changed. Framekeeper's CPU platform plugin is active in it:
without it vllm-omni does not run on a CPU at all.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

import footprint
from system import free_port, wait_for
from videos import LARGE, SMALL, Videos

REQUIREMENTS = Path(__file__).with_name("peer-requirements.txt")
INSTALL_SECONDS = 600.0
START_SECONDS = 240.0
#: How long it is watched for a recovery after its engine was killed.
WATCH_SECONDS = 60.0
#: vllm-omni's command line without its script, whose first line names the runtime's Python.
MAIN = "import sys; from vllm_omni.entrypoints.cli.main import main; sys.argv[0] = 'vllm'; main()"


def environment(runtime_python: Path, into: Path) -> Path:
    """Make the environment over the runtime; returns its Python."""
    site = _site_packages(runtime_python)
    python = into / "bin" / "python"
    _quietly([runtime_python, "-m", "venv", into])
    # addsitedir, so that the runtime's own .pth files count as well.
    over = Path(_site_packages(python)) / "zz-runtime.pth"
    over.write_text(f"import site; site.addsitedir({site!r})\n", encoding="utf-8")
    pip: list[str | Path] = [python, "-m", "pip", "--disable-pip-version-check"]
    _quietly([*pip, "install", "--no-deps", "-r", REQUIREMENTS])
    # The wheel is a CUDA build; without its extension it imports, and a text-to-video server needs no more.
    for library in (over.parent / "torchaudio" / "lib").glob("*.so"):
        library.unlink()
    return python


def _site_packages(python: Path) -> str:
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def _quietly(command: list[str | Path]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=INSTALL_SECONDS)
    if done.returncode:
        raise RuntimeError(f"{command[1:4]} failed: {done.stderr.strip().splitlines()[-1:]}")


@dataclass(frozen=True)
class Peer:
    """A running server."""

    url: str
    process: psutil.Process
    start_seconds: float

    def worker(self) -> psutil.Process:
        """The engine's process of the `mp` executor."""
        for child in self.process.children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if "DiffusionWorker" in " ".join(child.cmdline()):
                    return child
        raise RuntimeError("the server has no DiffusionWorker")


@contextlib.contextmanager
def serving(python: Path, model: Path, directory: Path, *, executor: str = "") -> Iterator[Peer]:
    """Run the server while the block runs; `executor` is empty for upstream's default of one device."""
    directory.mkdir(parents=True, exist_ok=True)
    port = free_port()
    command: list[str | Path] = [
        python,
        "-c",
        MAIN,
        "serve",
        model,
        "--omni",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    command += ["--enforce-eager", *(["--distributed-executor-backend", executor] if executor else [])]
    began = time.monotonic()
    with (directory / "server.log").open("ab") as output:
        process = subprocess.Popen(
            command,
            cwd=directory,
            env=_variables(directory),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    started = psutil.Process(process.pid)
    try:
        with Videos(f"http://127.0.0.1:{port}") as videos:

            def healthy() -> bool:
                if process.poll() is not None:
                    raise RuntimeError(f"vllm serve ended with {process.returncode}: {_tail(directory)}")
                return videos.status_code("/health") == 200

            wait_for("upstream's server is healthy", healthy, START_SECONDS, every=0.1)
            start_seconds = time.monotonic() - began
            videos.completed(videos.create(SMALL))
            yield Peer(videos.url, started, start_seconds)
    finally:
        _end(process)


def _variables(directory: Path) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("FRAMEKEEPER_")}
    return inherited | {
        "FRAMEKEEPER_DEVICE": "cpu",
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": str(len(os.sched_getaffinity(0))),
        "TORCH_COMPILE_DISABLE": "1",
        "TORCHDYNAMO_DISABLE": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        "VLLM_CACHE_ROOT": str(directory / "cache"),
        "VLLM_OMNI_SERVER_STORAGE__PATH": str(directory / "storage"),
    }


def _tail(directory: Path) -> str:
    lines = (directory / "server.log").read_text(encoding="utf-8", errors="replace").splitlines()
    return " / ".join(lines[-3:])


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the server and all that it started."""
    with contextlib.suppress(psutil.NoSuchProcess):
        below = psutil.Process(process.pid).children(recursive=True)
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
        for child in below:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def memory(peer: Peer) -> float:
    """MiB of all its processes."""
    return sum(footprint.proportional(pid) for pid in footprint.tree(peer.process.pid))


def killed_whole(peer: Peer) -> tuple[str, str]:
    """Kill its only process (the default executor of one device) mid-job: the job, and what a client sees."""
    with Videos(peer.url) as videos:
        video_id = videos.create(LARGE)
        wait_for("it is under way", lambda: videos.get(video_id)["status"] == "in_progress", 30, every=0.02)
        time.sleep(0.5)
        peer.process.kill()
        time.sleep(5.0)
        code = videos.status_code("/health")
    return video_id, f"5 s later {f'/health answers {code}' if code else 'nobody answers'}"


def job_after_restart(peer: Peer, video_id: str) -> str:
    """What a server that was started again on the same directory knows of an earlier job."""
    with Videos(peer.url) as videos:
        return f"GET of the interrupted job answers {videos.status_code(f'/v1/videos/{video_id}')}"


def killed_worker(peer: Peer, *, watch: float = WATCH_SECONDS) -> dict[str, Any]:
    """Kill its engine process (`mp`) mid-job; seconds to each thing that a client sees, null for never."""
    with Videos(peer.url) as videos:
        running = videos.create(LARGE)
        waiting = videos.create(SMALL)
        wait_for("it is under way", lambda: videos.get(running)["status"] == "in_progress", 30, every=0.02)
        time.sleep(0.5)
        began = time.monotonic()
        peer.worker().kill()
        seen: dict[str, Any] = dict.fromkeys(
            (
                "unhealthy_seconds",
                "running_job_ended_seconds",
                "waiting_job_ended_seconds",
                "healthy_again_seconds",
            )
        )
        while time.monotonic() - began < watch:
            healthy = videos.status_code("/health") == 200
            now = {
                "unhealthy_seconds": not healthy,
                "running_job_ended_seconds": _ended(videos, running),
                "waiting_job_ended_seconds": _ended(videos, waiting),
                "healthy_again_seconds": healthy and seen["unhealthy_seconds"] is not None,
            }
            for name, happened in now.items():
                if happened and seen[name] is None:
                    seen[name] = round(time.monotonic() - began, 2)
            if seen["healthy_again_seconds"] is not None:
                break
            time.sleep(0.05)
        return seen | {"watched_seconds": watch} | _afterwards(peer.url, running, waiting)


def _ended(videos: Videos, video_id: str) -> bool:
    return bool(videos.get(video_id)["status"] not in ("queued", "in_progress"))


def _afterwards(url: str, running: str, waiting: str) -> dict[str, Any]:
    with httpx.Client(base_url=url, timeout=10, trust_env=False) as client:
        states = {
            name: client.get(f"/v1/videos/{video_id}")
            for name, video_id in (("running_job", running), ("waiting_job", waiting))
        }
        new = client.post("/v1/videos", data=SMALL)
    told = {name: f"HTTP {answer.status_code}, {answer.json()['status']}" for name, answer in states.items()}
    return told | {"new_job": f"POST answered {new.status_code}"}
