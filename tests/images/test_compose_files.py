"""What compose.yaml and the Dockerfiles promise, held without an engine."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

PROJECT = Path(__file__).resolve().parents[2]
SERVICES: dict[str, Any] = yaml.safe_load((PROJECT / "compose.yaml").read_text())["services"]
OVERLAY: dict[str, Any] = yaml.safe_load((PROJECT / "compose.gpu.yaml").read_text())["services"]
DOCKERFILES = sorted((PROJECT / "docker").glob("*.Dockerfile"))
ENGINE = (PROJECT / "docker" / "engine.Dockerfile").read_text()


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_is_hardened(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["init"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["mem_limit"]
    assert service["pids_limit"]
    assert service["logging"]["options"]["max-size"]
    assert service["restart"] in ("no", "unless-stopped")
    assert not {"privileged", "ipc", "pid", "cap_add"} & set(service)
    assert service.get("network_mode", "none") == "none"


def test_the_engine_is_on_the_network_without_a_way_out_only() -> None:
    networks = yaml.safe_load((PROJECT / "compose.yaml").read_text())["networks"]
    assert networks["backend"] == {"internal": True}
    for name in ("engine", "postgres", "migrate"):
        assert SERVICES[name]["networks"] == ["backend"]
        assert "ports" not in SERVICES[name]


@pytest.mark.parametrize("name", [name for name, service in SERVICES.items() if "ports" in service])
def test_ports_are_published_on_this_machine_only_unless_somebody_says_otherwise(name: str) -> None:
    assert all(
        re.match(r"\$\{FRAMEKEEPER_\w*PUBLISH:-127\.0\.0\.1:\d+\}:\d+$", p) for p in SERVICES[name]["ports"]
    )


def test_no_password_stands_in_a_file() -> None:
    for name in ("compose.yaml", "compose.gpu.yaml", ".env.example"):
        text = (PROJECT / name).read_text()
        assert not re.search(r"PASSWORD(?!__?FILE)\w*[:=] *\S", text)
        assert "://framekeeper:" not in text


def test_the_engine_may_stop_longer_than_it_drains() -> None:
    drain = int(re.sub(r".*:-(\d+)}", r"\1", SERVICES["engine"]["environment"]["FRAMEKEEPER_DRAIN_SECONDS"]))
    for service in (SERVICES["engine"], OVERLAY["engine"]):
        grace = int(re.sub(r".*:-(\d+)s}", r"\1", service["stop_grace_period"]))
        assert grace >= drain + 25


def test_weights_are_mounted_read_only() -> None:
    for service in (SERVICES["engine"], OVERLAY["engine"]):
        assert any(re.search(r"/var/models:ro$", volume) for volume in service["volumes"])


@pytest.mark.parametrize("place", ["media", "cache", "tmp", "log", "run"])
def test_what_the_engine_writes_has_a_place_on_its_read_only_root(place: str) -> None:
    """An engine's raw log was lost without a word: nobody could write beside it."""
    directory = f"/srv/framekeeper/var/{place}"
    engine = SERVICES["engine"]
    mounted = [volume.split(":")[1:] for volume in engine["volumes"]] + [
        entry.split(":")[:1] for entry in engine["tmpfs"]
    ]
    assert [directory] in mounted
    assert directory in ENGINE, "the image makes it, so that a new volume belongs to the user"
    chart = (PROJECT / "deploy/helm/framekeeper/templates/engine.yaml").read_text()
    assert f"mountPath: {directory}}}" in chart


def test_only_the_overlay_needs_a_card() -> None:
    assert "deploy" not in SERVICES["engine"]
    [device] = OVERLAY["engine"]["deploy"]["resources"]["reservations"]["devices"]
    assert device["driver"] == "nvidia"
    assert device["device_ids"] == ["${FRAMEKEEPER_GPUS:-0}"]


@pytest.mark.parametrize("path", sorted((PROJECT / "docker" / "runtimes").glob("*/runtime.toml")), ids=str)
def test_each_runtime_is_built_on_its_python(path: Path) -> None:
    runtime = tomllib.loads(path.read_text())
    variable = f"PYTHON_{runtime['python'].replace('.', '_')}_IMAGE"
    assert f"FROM ${{{variable}}} AS python-for-{runtime['name']}\n" in ENGINE
    assert re.search(rf"^ARG {variable}=python:{re.escape(runtime['python'])}-slim-", ENGINE, re.M)
    assert f'"{runtime["name"]}"' in (PROJECT / "docker-bake.hcl").read_text()


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_images_run_without_a_shell_and_without_root(path: Path) -> None:
    last = path.read_text().rpartition("\nFROM ")[2]
    assert "\nUSER 10001:10001\n" in last
    assert "\nSTOPSIGNAL SIGTERM\n" in last
    for word in ("ENTRYPOINT", "CMD", "    CMD"):
        assert re.search(rf'^{word} \["', last, re.M)
    assert "healthchecks/" in last
    for label in ("title", "version", "revision", "licenses"):
        assert f"org.opencontainers.image.{label}=" in last


def test_an_update_that_reaches_no_registry_changes_nothing(tmp_path: Path) -> None:
    fake = tmp_path / "docker"
    fake.write_text("#!/bin/sh\necho no such host >&2\nexit 1\n")
    fake.chmod(0o755)
    before = [path.read_text() for path in DOCKERFILES]
    done = subprocess.run(
        [sys.executable, PROJECT / "docker" / "digests.py"],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "no such host" in done.stderr
    assert [path.read_text() for path in DOCKERFILES] == before
