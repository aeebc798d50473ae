"""Where the launcher makes the small checkpoint, and where it leaves what is there alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from framekeeper.launcher.checkpoint import is_wanted


def test_wanted_where_nothing_is_and_not_over_a_model_of_somebodys_own(tmp_path: Path) -> None:
    model = tmp_path / "wan2.2-t2v-tiny"
    assert is_wanted(model)
    model.mkdir()
    assert is_wanted(model)
    (model / "model_index.json").touch()
    assert not is_wanted(model)
    assert not is_wanted(tmp_path / "another-model")


def test_not_wanted_over_a_directory_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "wan2.2-t2v-tiny"
    model.mkdir()

    def forbidden(path: Path) -> list[Path]:  # root, as tests may run, may read any directory
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "iterdir", forbidden)
    assert not is_wanted(model)
