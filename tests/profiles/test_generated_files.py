"""What is generated from profiles, schema and rules is fresh in the repository."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from framekeeper.profiles import json_schema, reference
from framekeeper.profiles.document import read
from framekeeper.profiles.load import profile_names
from framekeeper.profiles.schema import Profile

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "configs" / "profiles"


def test_json_schema_is_fresh() -> None:
    assert (CONFIGS / "schema.json").read_text(encoding="utf-8") == json_schema.text(), (
        "run: framekeeper profile schema > configs/profiles/schema.json"
    )


def test_reference_is_fresh() -> None:
    assert (ROOT / "docs" / "profiles.md").read_text(encoding="utf-8") == reference.text(CONFIGS), (
        "run: framekeeper profile reference > docs/profiles.md"
    )


def test_json_schema_has_every_key_and_nothing_else() -> None:
    schema = json_schema.export()
    assert set(schema["properties"]) == set(Profile.model_fields) - {"name"}
    assert schema["additionalProperties"] is False
    assert all(
        "description" in field or "$ref" in field for field in schema["$defs"]["Host"]["properties"].values()
    )


def test_every_shipped_profile_says_where_its_numbers_come_from_and_names_the_schema() -> None:
    for name in profile_names(CONFIGS):
        lines = (CONFIGS / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
        assert lines[0] == "# yaml-language-server: $schema=schema.json"
        assert lines[1].startswith("# "), name


def test_a_shipped_profile_claims_hardware_only_where_a_card_got_it_ready() -> None:
    results = (ROOT / "bench" / "results" / "gpu.jsonl").read_text(encoding="utf-8").splitlines()
    lines = [json.loads(line) for line in results]
    ran = {line["profile"].removeprefix("shipped-") for line in lines if line["what"] == "ready"}
    claims = {
        name: read(CONFIGS / f"{name}.yaml").data.get("verified", "no") for name in profile_names(CONFIGS)
    }
    assert {name for name, claim in claims.items() if claim == "hardware"} <= ran
    assert set(claims.values()) <= {"no", "cpu", "hardware", False}


def test_yaml_of_other_readers_gives_the_same_keys() -> None:
    for name in profile_names(CONFIGS):
        path = CONFIGS / f"{name}.yaml"
        assert set(yaml.safe_load(path.read_text(encoding="utf-8"))) == set(read(path).data)
