"""The tiny checkpoint: the same bytes every time, and never written over somebody's model."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine_runtime import engine_python
from framekeeper.checkpoint import layout, pictures, tiny
from framekeeper.doctor.weights.check import check_headers, check_values


def make(
    python: Path | str, directory: Path, *kind: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, "-m", "framekeeper.checkpoint.tiny", directory, *kind],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def sums(directory: Path) -> dict[str, str]:
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tiny") / "model"
    result = make(engine_python(), directory, PYTHONHASHSEED="1", OMP_NUM_THREADS="1")
    assert result.returncode == 0, result.stderr
    return directory


@pytest.mark.slow
def test_bytes_are_the_same_every_time(checkpoint: Path, tmp_path: Path) -> None:
    other = tmp_path / "elsewhere" / "again"
    assert make(engine_python(), other, PYTHONHASHSEED="2", OMP_NUM_THREADS="2").returncode == 0
    assert sums(checkpoint) == sums(other)
    assert [path.name for path in other.parent.iterdir()] == ["again"], "nothing half-made is left beside it"


@pytest.mark.slow
def test_is_a_complete_small_two_expert_wan_folder(checkpoint: Path) -> None:
    assert layout.faults(checkpoint) == []
    assert layout.experts(checkpoint) == 2
    assert json.loads((checkpoint / "model_index.json").read_text())["boundary_ratio"] == 0.875
    weights = sums(checkpoint)
    name = "diffusion_pytorch_model.safetensors"
    assert weights[f"transformer/{name}"] != weights[f"transformer_2/{name}"]
    assert sum(path.stat().st_size for path in checkpoint.rglob("*") if path.is_file()) < 8_000_000


@pytest.mark.slow
def test_older_version_is_replaced(tmp_path: Path, checkpoint: Path) -> None:
    (tmp_path / tiny.MARKER).write_text('{"version": 0}')
    (tmp_path / "stale").write_text("from an older version")
    assert make(engine_python(), tmp_path).returncode == 0
    assert sums(tmp_path) == sums(checkpoint)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "takes", "channels"), [("ti2v", "optional", (48, 48)), ("i2v", "required", (36, 16))]
)
def test_kinds_for_pictures_have_the_published_models_form(
    tmp_path: Path, kind: str, takes: str, channels: tuple[int, int]
) -> None:
    (tmp_path / tiny.MARKER).write_text(json.dumps({"version": tiny.VERSION}))
    assert make(engine_python(), tmp_path, kind).returncode == 0, "another kind is replaced"
    assert tiny.is_current(tmp_path, kind)
    assert not tiny.is_current(tmp_path)
    checked = check_headers(tmp_path)
    assert (layout.faults(tmp_path), checked.findings, check_values(checked)) == ([], (), [])
    assert pictures.taken(tmp_path) == takes
    assert layout.experts(tmp_path) == (1 if kind == "ti2v" else 2)
    config = json.loads((tmp_path / "transformer" / "config.json").read_text())
    assert (config["in_channels"], config["out_channels"]) == channels


def test_an_unknown_kind_is_misuse(tmp_path: Path) -> None:
    result = make(sys.executable, tmp_path / "model", "s2v")
    assert result.returncode == 2
    assert "[t2v|ti2v|i2v]" in result.stderr
    assert not (tmp_path / "model").exists()


def test_same_version_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / tiny.MARKER).write_text(json.dumps({"version": tiny.VERSION}))
    (tmp_path / "note").write_text("mine")
    tiny.make_tiny(tmp_path)  # this environment has no torch: writing anything would fail
    assert sorted(path.name for path in tmp_path.iterdir()) == [tiny.MARKER, "note"]


@pytest.mark.parametrize("marker", [None, "not json", '{"version": "1"}', "[]"])
def test_somebodys_directory_is_refused(tmp_path: Path, marker: str | None) -> None:
    (tmp_path / "weights.bin").write_text("precious")
    if marker is not None:
        (tmp_path / tiny.MARKER).write_text(marker)
    with pytest.raises(tiny.NotOurs, match="not a tiny checkpoint"):
        tiny.make_tiny(tmp_path)
    assert (tmp_path / "weights.bin").read_text() == "precious"


def test_refusal_is_one_line_and_exit_1(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_text("precious")
    result = make(sys.executable, tmp_path)
    assert result.returncode == 1
    assert str(tmp_path) in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_file_in_its_place_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model"
    path.write_text("a file")
    with pytest.raises(tiny.NotOurs):
        tiny.make_tiny(path)
