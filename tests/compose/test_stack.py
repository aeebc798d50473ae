"""compose.yaml in a real Docker engine: `make test-compose`."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import httpx
import pytest

from compose.stack import Stack
from system import wait_for

pytestmark = [pytest.mark.compose, pytest.mark.timeout(900)]

#: What each image may add to the Python it is built on, in bytes. Seen: 115 MB and 3.06 GB.
LIMITS = {"gateway": 150e6, "engine": 3.5e9}
RUNNING = ("postgres", "gateway", "engine")


def test_a_post_becomes_a_video(stack: Stack) -> None:
    video = stack.make()
    assert stack.finished(video)["status"] == "completed"
    assert stack.frames(video) == 9


@pytest.mark.parametrize("service", RUNNING)
def test_containers_have_no_more_rights_than_they_need(stack: Stack, service: str) -> None:
    found = stack.inspect(service)
    host = found["HostConfig"]
    assert host["ReadonlyRootfs"]
    assert host["CapDrop"] == ["ALL"]
    assert "no-new-privileges:true" in host["SecurityOpt"]
    assert host["PidMode"] in ("", "private")
    assert host["IpcMode"] == "private"
    assert host["Memory"] > 0
    assert host["PidsLimit"] > 0
    status_file = stack.compose("exec", "-T", service, "cat", "/proc/1/status")
    values = dict(line.split(":\t", 1) for line in status_file.splitlines() if ":\t" in line)
    assert values["Uid"].split()[0] == ("999" if service == "postgres" else "10001")
    assert int(values["CapEff"], 16) == int(values["CapBnd"], 16) == 0
    assert values["NoNewPrivs"].strip() == "1"


def test_nothing_but_the_volumes_can_be_written(stack: Stack) -> None:
    code = (
        "import pathlib\n"
        "for place in ('/opt/framekeeper', '/srv/framekeeper', '/srv/framekeeper/var/models', '/usr'):\n"
        "    try: pathlib.Path(place, 'x').write_text('x'); print(place)\n"
        "    except OSError: pass"
    )
    assert stack.run_in("engine", code) == ""
    assert stack.run_in("gateway", code) == ""


def test_the_engine_has_no_way_out(stack: Stack) -> None:
    routes = stack.run_in("engine", "print(open('/proc/net/route').read())").splitlines()[1:]
    assert routes
    assert not [route for route in routes if route.split()[1] == "00000000"], "a default route"
    networks = stack.inspect("engine")["NetworkSettings"]["Networks"]
    assert list(networks) == ["framekeeper-test_backend"]
    assert not stack.inspect("engine")["HostConfig"]["PortBindings"]


def test_the_password_is_in_a_file_only(stack: Stack) -> None:
    code = "print(open('/srv/framekeeper/var/secrets/database-password').read())"
    password = stack.run_in("gateway", code)
    assert len(password) >= 40
    for service in RUNNING:
        assert password not in json.dumps(stack.inspect(service))
        assert password not in stack.compose("logs", service)


@pytest.mark.parametrize(("service", "image"), [("gateway", "gateway"), ("engine", "engine")])
def test_images_stay_small(stack: Stack, service: str, image: str) -> None:
    def size(name: str) -> int:
        command = ["docker", "image", "inspect", "--format", "{{.Size}}", name]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    assert size(stack.inspect(service)["Image"]) - size("python:3.11-slim-bookworm") < LIMITS[image]


@pytest.mark.parametrize("service", ["gateway", "engine", "postgres"])
def test_nothing_is_lost_when_a_container_is_killed(stack: Stack, service: str) -> None:
    videos = [stack.make(50) for _ in range(3)]
    wait_for("a job runs", lambda: "in_progress" in [stack.status(v).get("status") for v in videos], 60)
    stack.kill(service)
    for video in videos:
        assert stack.finished(video)["status"] == "completed"
        assert stack.frames(video) == 9


def test_prometheus_finds_both_targets(stack: Stack) -> None:
    stack.compose("--profile", "observability", "up", "--detach", "--no-deps", "prometheus")

    def healths() -> bool:
        try:
            answer = httpx.get(f"{stack.prometheus}/api/v1/targets", timeout=5).json()
        except httpx.HTTPError:
            return False
        return [target["health"] for target in answer["data"]["activeTargets"]] == ["up", "up"]

    wait_for("both targets are up", healths, 90, 1)


def test_a_swapped_profile_serves_and_everything_survives_down_and_up(stack: Stack) -> None:
    video = stack.make()
    assert stack.finished(video)["status"] == "completed"
    stack.up(FRAMEKEEPER_PROFILE="cpu-tiny-mp")
    environment = stack.inspect("engine")["Config"]["Env"]
    assert "FRAMEKEEPER_PROFILE=cpu-tiny-mp" in environment
    after = stack.make()
    assert stack.finished(after)["status"] == "completed"
    stack.compose("--profile", "observability", "down", "--timeout", "60")
    stack.up(FRAMEKEEPER_PROFILE="cpu-tiny")
    for each in (video, after):
        assert stack.status(each)["status"] == "completed"
        assert stack.frames(each) == 9


def refused(stack: Stack, sentence: str) -> dict[str, Any]:
    """Wait until the engine has stopped for a reason; the gateway's look at it."""

    def told() -> dict[str, Any] | None:
        answer = httpx.get(f"{stack.url}/health/startup", timeout=5)
        return answer.json() if answer.status_code == 503 and sentence in answer.text else None

    found: dict[str, Any] = wait_for(f"the gateway says {sentence!r}", told, 60, 0.5)
    wait_for("exit status 2", lambda: stack.inspect("engine")["State"]["ExitCode"] == 2, 60, 0.1)
    assert sentence in stack.compose("logs", "engine")
    return found


def test_a_profile_for_another_host_stops_the_engine_with_its_sentence(stack: Stack) -> None:
    try:
        stack.compose("up", "--detach", "--no-build", "--no-deps", "engine", FRAMEKEEPER_PROFILE="h200")
        [engine] = refused(stack, "host.memory: 112GiB")["engines"]
        assert (engine["state"], engine["phase"]) == ("failed", "refused")
    finally:
        stack.mend()
    assert stack.finished(stack.make())["status"] == "completed"


def test_truncated_weights_stop_the_engine_and_good_ones_start_it_again(stack: Stack) -> None:
    def model(code: str) -> None:
        script = (
            f"from pathlib import Path; import os, shutil; model = Path('var/models/wan2.2-t2v-tiny'); {code}"
        )
        stack.compose("run", "--rm", "--no-deps", "-T", "--entrypoint", "python", "checkpoint", "-c", script)

    try:
        model("shard = max(model.rglob('*.safetensors'), key=os.path.getsize); os.truncate(shard, 20_000)")
        stack.compose("up", "--detach", "--no-build", "--no-deps", "--force-recreate", "engine")
        [engine] = refused(stack, "truncated")["engines"]
        assert (engine["state"], engine["phase"]) == ("failed", "refused")
    finally:
        model("shutil.rmtree(model)")
        stack.mend()
    assert stack.finished(stack.make())["status"] == "completed"
