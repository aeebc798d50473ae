"""The whole system as real processes against a real database, for tests and the bench."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from framekeeper.engine import leftovers

PROJECT = Path(__file__).resolve().parent.parent


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(what: str, true: Callable[[], Any], seconds: float = 120, every: float = 0.05) -> Any:
    """Wait until `true()` is; returns its value. Fails with what was waited for."""
    deadline = time.monotonic() + seconds
    while True:
        if value := true():
            return value
        assert time.monotonic() < deadline, f"waited {seconds} s for: {what}"
        time.sleep(every)


class System:
    """A supervisor and any number of gateways. `close` ends all and checks that nothing is left."""

    def __init__(self, directory: Path, database_url: str, **settings: Any) -> None:
        self.directory = directory
        self.database_url = database_url
        self.settings = {key.upper(): str(value) for key, value in settings.items()}
        self.supervisor_port = free_port()
        self.supervisor: subprocess.Popen[bytes] | None = None
        self.gateways: dict[int, subprocess.Popen[bytes]] = {}
        self.urls: list[str] = []

    @property
    def run_directory(self) -> Path:
        return self.directory / "var" / "run"

    @property
    def media(self) -> Path:
        return self.directory / "var" / "media"

    def environment(self, **more: Any) -> dict[str, str]:
        settings = {
            "VAR": str(self.directory / "var"),
            "DATABASE_URL": self.database_url,
            "SUPERVISOR_PORT": str(self.supervisor_port),
            "STALE_SECONDS": "6",
            "LOG_FORMAT": "human",
            "HOST_ID": "test-host",
            "PROFILES": str(PROJECT / "configs" / "profiles"),
            "DEVICE_LOCKS": str(self.directory / "locks"),
            **self.settings,
            **{key.upper(): str(value) for key, value in more.items()},
        }
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("FRAMEKEEPER_")}
        return inherited | {f"FRAMEKEEPER_{key}": value for key, value in settings.items()}

    def _start(self, command: str, log: str, **more: Any) -> subprocess.Popen[bytes]:
        self.directory.mkdir(parents=True, exist_ok=True)
        with (self.directory / log).open("ab") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "framekeeper", command],
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=self.environment(**more),
                cwd=PROJECT,
                start_new_session=True,
            )

    # -- supervisor -----------------------------------------------------------------------------------------

    def start_supervisor(self, **more: Any) -> None:
        self.supervisor = self._start("supervisor", "supervisor.log", **more)

    def supervisor_says(self, path: str = "/health/startup") -> dict[str, Any]:
        try:
            answer = httpx.get(f"http://127.0.0.1:{self.supervisor_port}{path}", timeout=5)
            return {"http": answer.status_code, **answer.json()}
        except httpx.HTTPError:
            return {"http": 0, "status": "unreachable", "engines": []}

    def engine(self, number: int = 0) -> dict[str, Any]:
        engines = self.supervisor_says()["engines"]
        return engines[number] if engines else {"state": "unreachable", "restarts": -1, "detail": None}

    def wait_ready(self, seconds: float = 180) -> None:
        def ready() -> bool:
            assert self.supervisor is not None
            assert self.supervisor.poll() is None, self.log()
            return bool(self.supervisor_says()["status"] == "ready")

        try:
            wait_for("the engine is ready", ready, seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.log()}") from None

    def kill_supervisor(self) -> None:
        assert self.supervisor is not None
        self.supervisor.kill()
        self.supervisor.wait()

    def stop_supervisor(self) -> int:
        assert self.supervisor is not None
        self.supervisor.send_signal(signal.SIGTERM)
        return self.supervisor.wait(120)

    def engine_processes(self) -> dict[int, str]:
        """Every process of this system's engines, with its command line."""
        found = {}
        for pid in leftovers.find(leftovers.RUN, str(self.run_directory)):
            with contextlib.suppress(OSError):
                found[pid] = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip()
        return found

    def worker_pid(self) -> int:
        """The worker: the only child of the warden that is not a tracker."""
        wardens = [pid for pid, command in self.engine_processes().items() if "warden.py" in command]
        children = subprocess.run(
            ["pgrep", "-P", str(wardens[0])], capture_output=True, text=True, check=True
        ).stdout.split()
        return int(children[0])

    def log(self, name: str = "supervisor.log") -> str:
        path = self.directory / name
        return path.read_text()[-6000:] if path.exists() else ""

    # -- gateways -------------------------------------------------------------------------------------------

    def start_gateway(self, port: int | None = None, **more: Any) -> str:
        port = port or free_port()
        self.gateways[port] = self._start("gateway", f"gateway-{port}.log", port=port, **more)
        url = f"http://127.0.0.1:{port}"

        def live() -> bool:
            assert self.gateways[port].poll() is None, self.log(f"gateway-{port}.log")
            with contextlib.suppress(httpx.HTTPError):
                return httpx.get(f"{url}/health/live", timeout=2).status_code == 200
            return False

        wait_for("the gateway listens", live, 60)
        return url

    def stop_gateways(self, how: signal.Signals = signal.SIGTERM) -> None:
        for gateway in self.gateways.values():
            if gateway.poll() is None:
                if how is signal.SIGKILL:
                    os.killpg(gateway.pid, how)
                else:
                    gateway.send_signal(how)
        for gateway in self.gateways.values():
            gateway.wait(60)
        self.gateways.clear()

    # -- end ------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Stop everything in good order; nothing may be left."""
        self.stop_gateways()
        if self.supervisor is not None and self.supervisor.poll() is None:
            assert self.stop_supervisor() == 0, self.log()
        assert self.engine_processes() == {}

    def abandon(self) -> None:
        """Kill everything, for the end of a failed test."""
        for process in [*self.gateways.values(), *([self.supervisor] if self.supervisor else [])]:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        leftovers.kill(leftovers.RUN, str(self.run_directory))
        for link in self.run_directory.glob("prometheus-*"):  # of gateways that a test killed
            if link.is_symlink():
                shutil.rmtree(link.readlink(), ignore_errors=True)


def fault_profile(directory: Path, faults: list[dict[str, Any]], **script: Any) -> Path:
    """Write a profile of the fault backend with this script; returns the profile's path.

    `profile` in the script is further YAML for the profile, `deadlines` and `warm_up_seconds` its deadlines,
    `image` whether it takes pictures.
    """
    directory.mkdir(parents=True, exist_ok=True)
    name = f"faults-{len(list(directory.glob('*.yaml')))}"
    extra, image = script.pop("profile", ""), script.pop("image", "none")
    (directory / f"{name}.json").write_text(json.dumps({"step_seconds": 0.02, **script, "faults": faults}))
    deadlines = {"load": 20, "step": 3, "decode": 3, "job": 30} | script.pop("deadlines", {})
    (directory / f"{name}.yaml").write_text(
        f"""
serves: test-model
runtime: omni-0.30-cpu
backend: fault
model: {directory / name}.json
devices: {{count: 1, kind: cpu}}
vae: {{tiling: false}}
defaults:
  {{size: 64x64, num_frames: 9, fps: 8, num_inference_steps: 6, guidance_scale: 4.0, guidance_scale_2: 3.0,
   boundary_ratio: 0.875, flow_shift: 5.0}}
admits: {{size: 128x128, num_frames: 49, num_inference_steps: 50, image: {image}}}
warm_up: {{size: 64x64, num_frames: 9, deadline_seconds: {script.get("warm_up_seconds", 10)}}}
deadlines:
  {{load_seconds: {deadlines["load"]}, step_seconds: {deadlines["step"]},
   decode_seconds: {deadlines["decode"]}, job_seconds: {deadlines["job"]}}}
{extra}
"""
    )
    return directory / f"{name}.yaml"
