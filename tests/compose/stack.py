"""The stack of compose.yaml in a Docker engine, as a test sees it."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import av
import httpx
from openai import OpenAI

from system import wait_for

PROJECT = Path(__file__).resolve().parents[2]
FILES = ("compose.yaml", "tests/compose/build.yaml")


class Stack:
    """One compose project of its own on ports of its own."""

    def __init__(self, port: int, prometheus_port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.client = OpenAI(base_url=f"{self.url}/v1", api_key="not-checked", max_retries=20)
        self.prometheus = f"http://127.0.0.1:{prometheus_port}"
        self.environment = {
            **os.environ,
            "COMPOSE_FILE": ":".join(str(PROJECT / name) for name in FILES),
            "COMPOSE_PROJECT_NAME": "framekeeper-test",
            "FRAMEKEEPER_PUBLISH": f"127.0.0.1:{port}",
            "FRAMEKEEPER_PROMETHEUS_PUBLISH": f"127.0.0.1:{prometheus_port}",
        }

    def compose(self, *arguments: str, **settings: str) -> str:
        """Run a compose command to its end; its output. Fails with what it said."""
        done = subprocess.run(
            ["docker", "compose", *arguments],
            env=self.environment | settings,
            cwd=PROJECT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{arguments}: {done.stderr[-3000:]}"
        return done.stdout

    def up(self, **settings: str) -> None:
        """Start all and wait until a video could be made."""
        self.environment |= settings
        self.compose("up", "--detach", "--wait", "--no-build")

    def mend(self) -> None:
        """Start the engine as it was when it had stopped, by README's line for a swapped profile.

        Not `up` of all: it ends at once where a gateway is unhealthy for want of an engine.
        """
        self.compose("up", "--detach", "--wait", "--no-build", "engine")
        wait_for("a video could be made", lambda: self._answers("/health/ready"), 120, 1)

    def _answers(self, path: str) -> bool:
        with suppress(httpx.HTTPError):
            return httpx.get(self.url + path, timeout=5).status_code == 200
        return False

    def inspect(self, service: str) -> dict[str, Any]:
        """What the engine knows about a service's container, ended ones included."""
        container = self.compose("ps", "--all", "--quiet", service).strip()
        done = subprocess.run(["docker", "inspect", container], capture_output=True, text=True, check=True)
        found: dict[str, Any] = json.loads(done.stdout)[0]
        return found

    def run_in(self, service: str, code: str) -> str:
        """Run Python in a running container; what it printed."""
        return self.compose("exec", "-T", service, "python3", "-c", code).strip()

    def kill(self, service: str) -> None:
        """Kill a container's first process from outside, as the kernel would, and wait for the next one."""
        pid = self.inspect(service)["State"]["Pid"]
        os.kill(pid, signal.SIGKILL)
        wait_for(f"{service} runs again", lambda: self.inspect(service)["State"]["Pid"] not in (0, pid), 60)

    def make(self, steps: int = 6) -> str:
        """Ask for a video as OpenAI's client does; its id."""
        extra = {"num_inference_steps": steps}
        return self.client.videos.create(model="wan2.2-t2v-tiny", prompt="a cat", extra_body=extra).id

    def status(self, video: str) -> dict[str, Any]:
        """A video's status; empty where nobody answers or it is not known."""
        try:
            answer = httpx.get(f"{self.url}/v1/videos/{video}", timeout=10)
        except httpx.HTTPError:
            return {}
        return dict(answer.json()) if answer.status_code == 200 else {}

    def finished(self, video: str) -> dict[str, Any]:
        """A video's status when it is final."""
        final = ("completed", "failed", "cancelled")

        def ended() -> dict[str, Any] | None:
            now = self.status(video)
            return now if now.get("status") in final else None

        found: dict[str, Any] = wait_for(f"{video} ends", ended, 300, 0.5)
        return found

    def frames(self, video: str) -> int:
        """How many frames a video's content decodes to."""
        content = self.client.videos.download_content(video).content
        with av.open(io.BytesIO(content)) as container:
            return sum(1 for _ in container.decode(video=0))
