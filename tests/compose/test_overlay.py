"""What compose makes of compose.gpu.yaml and .env.example; no engine and no card is needed for that."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from compose.stack import PROJECT

pytestmark = pytest.mark.compose


def resolved(*options: str, **settings: str) -> subprocess.CompletedProcess[str]:
    bare = {
        name: value for name, value in os.environ.items() if not name.startswith(("FRAMEKEEPER", "COMPOSE"))
    }
    command = [
        "docker",
        "compose",
        "--project-directory",
        str(PROJECT),
        *options,
        "config",
        "--format",
        "json",
    ]
    return subprocess.run(
        command, env=bare | settings, cwd=PROJECT, capture_output=True, text=True, check=False
    )


def engine(*options: str, **settings: str) -> dict[str, Any]:
    done = resolved(*options, **settings)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)["services"]["engine"]
    return found


OVERLAY = ("--file", "compose.yaml", "--file", "compose.gpu.yaml")


@pytest.mark.parametrize("with_metrics", [False, True])
@pytest.mark.parametrize("runtime", ["omni-0.30-cu130", "torch-2.4.1-cu124"])
@pytest.mark.parametrize("cards", ["0", "0,1,2,3", "GPU-11111111-2222-3333-4444-555555555555"])
def test_cards_are_reserved_by_their_ids(cards: str, runtime: str, with_metrics: bool) -> None:
    options = (*OVERLAY, "--profile", "observability") if with_metrics else OVERLAY
    found = engine(*options, FRAMEKEEPER_PROFILE="h200", FRAMEKEEPER_GPUS=cards, FRAMEKEEPER_RUNTIME=runtime)
    assert found["deploy"]["resources"]["reservations"]["devices"] == [
        {"driver": "nvidia", "capabilities": ["gpu"], "device_ids": [cards]}
    ]
    assert found["image"].endswith(f"-{runtime}")
    assert found["build"]["args"]["RUNTIME"] == runtime
    assert found["ulimits"] == {"memlock": -1}


def test_a_gpu_host_must_say_which_profile() -> None:
    done = resolved(*OVERLAY)
    assert done.returncode != 0
    assert "FRAMEKEEPER_PROFILE" in done.stderr
    assert "such as h200" in done.stderr


def test_every_line_of_the_example_with_its_mark_taken_off_is_one_that_compose_reads(tmp_path: Path) -> None:
    text = (PROJECT / ".env.example").read_text(encoding="utf-8")
    environment = tmp_path / "env"
    environment.write_text(re.sub(r"^#(?=[A-Z_]+=)", "", text, flags=re.M), encoding="utf-8")
    found = engine("--env-file", str(environment))
    assert found["environment"]["FRAMEKEEPER_PROFILE"] == "h200"
    assert found["environment"]["FRAMEKEEPER_ENGINE_GROUPS"] == "2"
    [cards] = found["deploy"]["resources"]["reservations"]["devices"]
    assert cards["device_ids"] == ["0,1"]
    read = "".join(
        (PROJECT / name).read_text(encoding="utf-8") for name in ("compose.yaml", "compose.gpu.yaml")
    )
    for name in re.findall(r"^#([A-Z_]+)=", text, re.M):
        assert name == "COMPOSE_FILE" or f"${{{name}:" in read


def test_weights_are_brought_to_a_gpu_host_and_not_made() -> None:
    done = resolved(*OVERLAY, FRAMEKEEPER_PROFILE="h200")
    assert "checkpoint" not in json.loads(done.stdout)["services"]
    [models] = [
        each
        for each in json.loads(done.stdout)["services"]["engine"]["volumes"]
        if "models" in each["target"]
    ]
    assert (models["type"], models["read_only"]) == ("bind", True)
