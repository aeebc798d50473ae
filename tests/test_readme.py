from pathlib import Path

import pytest

from framekeeper.settings import PREFIX, Settings
from framekeeper.settings_table import main, table, updated

README = Path(__file__).parent.parent / "README.md"


def test_readme_lists_the_settings_as_they_are() -> None:
    text = README.read_text(encoding="utf-8")
    assert updated(text) == text, "run `make format`"


def test_every_setting_has_a_row_with_a_meaning() -> None:
    rows = table().splitlines()[2:]
    assert len(rows) == len(Settings.model_fields)
    for name, row in zip(Settings.model_fields, rows, strict=True):
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert cells[0] == f"`{PREFIX}{name.upper()}`"
        assert cells[2]


def test_renewing_a_file_without_marks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="missing"):
        updated("# something else")
    assert main([]) == 2


def test_every_make_target_that_readme_names_exists() -> None:
    makefile = (README.parent / "Makefile").read_text(encoding="utf-8")
    for target in ("run", "test"):
        assert f"\n{target}:" in makefile
        assert f"make {target}" in README.read_text(encoding="utf-8")
