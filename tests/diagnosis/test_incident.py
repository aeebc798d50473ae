"""The record of an end survives the way into a row and back."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

from framekeeper.diagnosis.classify import classify
from framekeeper.diagnosis.incident import Incident, Memory
from framekeeper.diagnosis.ladder import History, Situation, decide
from framekeeper.engine.exit import Exit
from framekeeper.profiles.load import load_profile

CONFIGS = Path(__file__).parents[2] / "configs" / "profiles"
TIME = datetime(2026, 12, 2, 9, 0, tzinfo=UTC)


def incident() -> Incident:
    exit = Exit.of(-6)
    found = classify(["torch._inductor.exc.InductorError: KeyError: 'op19'"], exit)
    profile = load_profile("h200", CONFIGS)
    made = decide(
        Situation(diagnosis=found, history=History(), profile=profile, rung=0, now=TIME.timestamp(), job=True)
    )
    return Incident.of(
        found,
        made,
        exit,
        id="incident_1",
        time=TIME,
        engine="host/0",
        profile=profile.name,
        rung=0,
        rung_name="profile",
        served=True,
        phase="denoising",
        job="video_1",
        attempt=2,
        memory=Memory(allocated_bytes=7),
    )


def test_a_row_gives_the_same_record() -> None:
    record = incident()
    row = record.to_row()
    assert Incident.from_row(row | {"unknown_column": 1}) == record
    assert row["memory"]["allocated_bytes"] == 7


def test_a_row_holds_plain_values_only() -> None:
    row = incident().to_row()
    assert json.loads(json.dumps(row | {"time": 0})) == row | {"time": 0}


def test_the_ladder_reads_what_was_decided() -> None:
    before = incident().as_past()
    assert (before.signature, before.rung, before.after) == ("compile_inductor_error", 0, 1)
    assert (before.action, before.served, before.time) == ("next_rung", True, TIME.timestamp())
