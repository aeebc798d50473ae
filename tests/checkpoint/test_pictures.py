"""Whether a checkpoint takes pictures is told from its index, and held against the profile."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from framekeeper.checkpoint.pictures import contradiction, taken


def checkpoint(directory: Path, **index: Any) -> Path:
    (directory / "model_index.json").write_text(json.dumps(index))
    return directory


T2V = {"_class_name": "WanPipeline", "expand_timesteps": False}
TI2V = {"_class_name": "WanPipeline", "expand_timesteps": True}
I2V = {"_class_name": "WanImageToVideoPipeline"}


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        (T2V, "none"),
        ({"_class_name": "WanPipeline"}, "none"),
        (TI2V, "optional"),
        (I2V, "required"),
        ({"_class_name": "SomebodysPipeline"}, None),
        ({}, None),
    ],
)
def test_the_pipelines_class_tells(tmp_path: Path, index: dict[str, Any], expected: str | None) -> None:
    assert taken(checkpoint(tmp_path, **index)) == expected


@pytest.mark.parametrize("text", [None, "", "[]", "not json"])
def test_an_unreadable_index_tells_nothing(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "model_index.json").write_text(text)
    assert taken(tmp_path) is None
    assert contradiction(tmp_path, "required") is None


def test_a_profile_that_does_not_fit_is_told_what_to_set(tmp_path: Path) -> None:
    assert contradiction(checkpoint(tmp_path, **T2V), "none") is None
    told = contradiction(tmp_path, "optional")
    assert told is not None
    assert "from text only" in told
    assert told.endswith("set admits.image: none")
    for image in ("none", "optional"):
        told = contradiction(checkpoint(tmp_path, **I2V), image)  # type: ignore[arg-type]
        assert told is not None
        assert told.endswith("set admits.image: required")


@pytest.mark.parametrize("image", ["none", "optional", "required"])
def test_a_model_of_both_kinds_may_be_kept_for_either(tmp_path: Path, image: Any) -> None:
    assert contradiction(checkpoint(tmp_path, **TI2V), image) is None
