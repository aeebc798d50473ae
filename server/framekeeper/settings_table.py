"""Writes README's table of settings: `python -m framekeeper.settings_table README.md`."""

from __future__ import annotations

import sys

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from framekeeper.marked_table import Marks
from framekeeper.settings import PREFIX, Settings

MARKS = Marks(what="settings", module="framekeeper.settings_table", file="README.md")


def table() -> str:
    """The table in Markdown, one row a setting."""
    rows = ["| Variable | Default | Meaning |", "|---|---|---|"]
    for name, field in Settings.model_fields.items():
        rows.append(f"| `{PREFIX}{name.upper()}` | {_default(field)} | {field.description} |")
    return "\n".join(rows)


def updated(text: str) -> str:
    """`text` with the table between the two marks renewed. Raises ValueError when a mark is missing."""
    return MARKS.renewed(text, table())


def _default(field: FieldInfo) -> str:
    if field.default is PydanticUndefined:
        return "the host's name"
    if field.default is None or field.default == "":
        return ""
    return f"`{str(field.default).lower() if isinstance(field.default, bool) else field.default}`"


def main(arguments: list[str]) -> int:
    """Renew the table in the file that is named."""
    return MARKS.main(table(), arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
