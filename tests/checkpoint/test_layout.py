"""Faults of a diffusers folder, each told by the path that it is about."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from framekeeper.checkpoint.layout import experts, faults

COMPONENTS = {
    "transformer": ["diffusers", "WanTransformer3DModel"],
    "transformer_2": ["diffusers", "WanTransformer3DModel"],
    "vae": ["diffusers", "AutoencoderKLWan"],
    "text_encoder": ["transformers", "UMT5EncoderModel"],
    "tokenizer": ["transformers", "T5TokenizerFast"],
    "scheduler": ["diffusers", "UniPCMultistepScheduler"],
}
CONFIGS = {"tokenizer": "tokenizer_config.json", "scheduler": "scheduler_config.json"}
WEIGHTS = ("transformer", "transformer_2", "vae", "text_encoder")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A complete folder; the transformer is in two shards."""
    (tmp_path / "model_index.json").write_text(
        json.dumps({"_class_name": "WanPipeline", "boundary_ratio": 0.875, **COMPONENTS})
    )
    for name in COMPONENTS:
        (tmp_path / name).mkdir()
        (tmp_path / name / CONFIGS.get(name, "config.json")).write_text("{}")
        if name in WEIGHTS:
            (tmp_path / name / "model.safetensors").write_bytes(b"weights")
    (tmp_path / "tokenizer" / "spiece.model").write_bytes(b"words")
    (tmp_path / "transformer" / "model.safetensors").unlink()
    shards = {"a": "model-1.safetensors", "b": "model-2.safetensors", "c": "model-2.safetensors"}
    for shard in set(shards.values()):
        (tmp_path / "transformer" / shard).write_bytes(b"weights")
    (tmp_path / "transformer" / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    return tmp_path


def test_a_complete_folder_has_none(model: Path) -> None:
    assert faults(model) == []
    assert experts(model) == 2


@pytest.mark.parametrize(
    ("damage", "path", "words"),
    [
        (lambda m: (m / "model_index.json").unlink(), "model_index.json", "is missing"),
        (lambda m: (m / "model_index.json").write_text("{"), "model_index.json", "cannot be read"),
        (lambda m: (m / "model_index.json").write_text("[]"), "model_index.json", "no JSON object"),
        (lambda m: (m / "vae" / "config.json").unlink(), "vae/config.json", "is missing"),
        (lambda m: (m / "vae" / "model.safetensors").unlink(), "vae", "holds no weights"),
        (lambda m: (m / "vae" / "model.safetensors").write_bytes(b""), "vae/model.safetensors", "is empty"),
        (
            lambda m: (m / "vae" / "model.safetensors").write_text(
                "version https://git-lfs.github.com/spec/v1\n"
            ),
            "vae/model.safetensors",
            "git lfs pull",
        ),
        (
            lambda m: (m / "transformer" / "model-2.safetensors").unlink(),
            "transformer/model-2.safetensors",
            "is missing",
        ),
        (lambda m: (m / "tokenizer" / "spiece.model").unlink(), "tokenizer", "holds no vocabulary"),
        (lambda m: (m / "tokenizer" / "spiece.model").write_bytes(b""), "tokenizer/spiece.model", "is empty"),
        (lambda m: (m / "scheduler").rename(m / "elsewhere"), "scheduler", "names scheduler"),
        (
            lambda m: (m / "transformer" / "model.safetensors.index.json").write_text("{}"),
            "transformer/model.safetensors.index.json",
            "no weight_map",
        ),
    ],
)
def test_each_fault_is_one_sentence_naming_the_path(
    model: Path, damage: Callable[[Path], object], path: str, words: str
) -> None:
    damage(model)
    found = faults(model)
    assert len(found) == 1, found
    assert str(model / path) in found[0]
    assert words in found[0]


def test_all_faults_come_at_once(model: Path) -> None:
    (model / "vae" / "config.json").unlink()
    (model / "text_encoder" / "model.safetensors").write_bytes(b"")
    assert len(faults(model)) == 2


def test_broken_link_of_a_hub_snapshot(model: Path) -> None:
    weights = model / "vae" / "model.safetensors"
    weights.unlink()
    weights.symlink_to(model / "blobs" / "gone")
    assert faults(model) == [f"{weights} cannot be read: No such file or directory"]


def test_index_without_a_needed_component(model: Path) -> None:
    rest = {name: value for name, value in COMPONENTS.items() if name != "vae"}
    (model / "model_index.json").write_text(json.dumps(rest))
    assert faults(model) == [f"{model / 'model_index.json'} names no vae, which a Wan pipeline needs"]


def test_component_left_out_on_purpose(model: Path) -> None:
    """Wan2.2-TI2V-5B names its second transformer as a pair of nulls."""
    (model / "model_index.json").write_text(json.dumps({**COMPONENTS, "transformer_2": [None, None]}))
    (model / "transformer_2").rename(model / "unused")
    assert faults(model) == []
    assert experts(model) == 1


def test_no_directory(tmp_path: Path) -> None:
    assert faults(tmp_path / "nowhere") == [f"{tmp_path / 'nowhere'} is not a directory"]
    with pytest.raises(ValueError, match="is missing"):
        experts(tmp_path / "nowhere")
