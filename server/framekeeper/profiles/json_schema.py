"""The profile's JSON Schema for editors: completion, descriptions, unknown keys.

Editors see one file at a time, without what it extends, so nothing is required where `extends` stands, and
nothing inside a section. What is missing in the whole, `framekeeper profile check` says.
"""

from __future__ import annotations

import json
from typing import Any

from framekeeper.profiles.fallbacks import FIXED
from framekeeper.profiles.schema import Profile, Rung

SCHEMA_ID = "https://json-schema.org/draft/2020-12/schema"


def export() -> dict[str, Any]:
    """The schema as a mapping."""
    schema = Profile.model_json_schema()
    for section in schema["$defs"].values():
        section.pop("required", None)
    properties: dict[str, Any] = schema["properties"]
    # The name of the file is the name of the profile.
    del properties["name"]
    needed = [key for key in schema.pop("required") if key != "name"]
    properties["verified"] = {"anyOf": [{"const": False}, properties["verified"]]}
    capability = {"anyOf": [{"type": "number"}, {"type": "string", "pattern": r"^[0-9]+\.[0-9]$"}]}
    schema["$defs"]["Host"]["properties"]["compute_capabilities"]["items"] = capability
    changeable = {key: value for key, value in properties.items() if key not in FIXED}
    schema["$defs"]["Rung"]["properties"]["change"] = {
        "type": "object",
        "description": Rung.model_fields["change"].description,
        "properties": changeable,
        "additionalProperties": False,
    }
    schema["$defs"]["Rung"]["required"] = ["name", "change"]
    return {
        "$schema": SCHEMA_ID,
        **schema,
        "if": {"not": {"required": ["extends"]}},
        "then": {"required": needed},
    }


def text() -> str:
    """The schema as it lies in configs/profiles/schema.json."""
    return json.dumps(export(), indent=2, ensure_ascii=False) + "\n"
