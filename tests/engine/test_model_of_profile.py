"""A supervisor does not start a model whose index says other than the profile."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from framekeeper.engine.supervisor import Unusable, prepare
from framekeeper.settings import load


def begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, profile: str, model: Path) -> None:
    for name, value in {
        "DATABASE_URL": "postgresql://nobody@localhost/nothing",
        "PROFILE": profile,
        "MODEL": str(model),
        "VAR": str(tmp_path / "var"),
        "ENGINE_PYTHON": sys.executable,
    }.items():
        monkeypatch.setenv(f"FRAMEKEEPER_{name}", value)


@pytest.mark.parametrize(
    ("profile", "index", "words"),
    [
        ("cpu-tiny", {"_class_name": "WanImageToVideoPipeline"}, "set admits.image: required"),
        ("cpu-tiny-i2v", {"_class_name": "WanPipeline"}, "set admits.image: none"),
    ],
)
def test_a_model_of_the_other_kind_is_told_with_the_key_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, profile: str, index: dict[str, Any], words: str
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "model_index.json").write_text(json.dumps(index))
    begin(tmp_path, monkeypatch, profile, model)
    with pytest.raises(Unusable, match=words) as refused:
        prepare(load())
    assert "names no vae" in str(refused.value), "all faults of the model at once"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "wan2.2-ti2v-tiny",
            "is not there: `framekeeper model make-tiny .*/wan2.2-ti2v-tiny --kind ti2v` makes it",
        ),
        ("Wan2.2-TI2V-5B-Diffusers", "Wan2.2-TI2V-5B-Diffusers is not a directory"),
    ],
)
def test_a_tiny_checkpoint_that_is_not_there_is_told_with_the_command_that_makes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, words: str
) -> None:
    begin(tmp_path, monkeypatch, "cpu-tiny-ti2v", tmp_path / name)
    with pytest.raises(Unusable, match=words) as refused:
        prepare(load())
    assert ("make-tiny" in str(refused.value)) == name.endswith("-tiny")
