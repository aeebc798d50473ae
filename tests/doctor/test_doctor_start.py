"""What stops a supervisor before any engine is started, and where that can be read."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from checkpoint_files import change, model, zeros

from faulty import fault_profile
from system import System, wait_for


def cut_short(directory: Path) -> Path:
    shard = next((directory / "transformer_2").glob("*.safetensors"))
    os.truncate(shard, shard.stat().st_size - 1)
    return shard


def refused(directory: Path, database_url: str, checkpoint: Path, **settings: Any) -> System:
    """A supervisor of cpu-tiny with this checkpoint, after its end."""
    system = System(
        directory,
        database_url,
        profile="cpu-tiny",
        model=checkpoint,
        engine_python=sys.executable,
        **settings,
    )
    system.start_supervisor()
    assert system.supervisor is not None
    assert system.supervisor.wait(30) == 2
    assert "Traceback" not in system.log()
    return system


@pytest.mark.parametrize(("doctor", "sayer"), [(True, "doctor: fatal [weights-file]"), (False, "model:")])
def test_a_truncated_checkpoint_stops_the_start_with_the_files_name_once(
    doctor: bool, sayer: str, tmp_path: Path, postgres_url: str
) -> None:
    checkpoint = model(tmp_path / "model")
    shard = cut_short(checkpoint)
    system = refused(tmp_path, postgres_url, checkpoint, doctor=doctor)
    assert f"{sayer} {shard} is truncated" in system.log()
    assert system.log().count(f"{shard} is truncated") == 1


def test_a_refused_start_shows_in_health_startup_until_the_next_one(
    tmp_path: Path, postgres_url: str
) -> None:
    checkpoint = change(model(tmp_path / "model"), {"proj_out.weight": zeros("BF16", 64, 31)})
    system = refused(tmp_path, postgres_url, checkpoint)
    assert "doctor: fatal [" in system.log()
    try:
        url = system.start_gateway()
        answer = httpx.get(f"{url}/health/startup")
        (engine,) = answer.json()["engines"]
        assert (answer.status_code, engine["state"], engine["phase"]) == (503, "failed", "refused")
        assert "proj_out.weight" in engine["detail"]
        # Its heartbeat gets old, and the sentence stays.
        stale = wait_for(
            "the engine counts as silent",
            lambda: next(
                (
                    reason
                    for reason in httpx.get(f"{url}/health/startup").json()["reasons"]
                    if "silent" in reason
                ),
                "",
            ),
            seconds=20,
        )
        assert "proj_out.weight" in stale
    finally:
        system.close()


def test_a_refused_start_ends_soon_where_the_database_is_away(tmp_path: Path) -> None:
    checkpoint = model(tmp_path / "model")
    cut_short(checkpoint)
    began = time.monotonic()
    system = refused(tmp_path, "postgresql://nobody@127.0.0.1:1/none", checkpoint)
    assert time.monotonic() - began < 15
    assert "is truncated" in system.log()
    assert "the refusal is not in the database" in system.log()


def test_a_doctor_that_is_off_is_named_and_stops_nothing(tmp_path: Path, postgres_url: str) -> None:
    profile = fault_profile(tmp_path / "profiles", [])
    system = System(tmp_path, postgres_url, profile=profile, engine_python=sys.executable, doctor="false")
    system.start_supervisor()
    try:
        system.wait_ready(60)
        assert "the doctor is off" in system.log()
    finally:
        system.close()
