"""Writes README's table of settings: `python -m framekeeper.settings_table README.md`."""

from __future__ import annotations

import sys
from pathlib import Path

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from framekeeper.settings import PREFIX, Settings

BEGIN = "<!-- settings: written by python -m framekeeper.settings_table -->"
END = "<!-- end of settings -->"


def table() -> str:
    """The table in Markdown, one row a setting."""
    rows = ["| Variable | Default | Meaning |", "|---|---|---|"]
    for name, field in Settings.model_fields.items():
        rows.append(f"| `{PREFIX}{name.upper()}` | {_default(field)} | {field.description} |")
    return "\n".join(rows)


def updated(text: str) -> str:
    """`text` with the table between the two marks renewed. Raises ValueError when a mark is missing."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the marks {BEGIN!r} and {END!r} are missing")
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


def _default(field: FieldInfo) -> str:
    if field.default is PydanticUndefined:
        return "the host's name"
    if field.default is None or field.default == "":
        return ""
    return f"`{str(field.default).lower() if isinstance(field.default, bool) else field.default}`"


def main(arguments: list[str]) -> int:
    """Renew the table in the file that is named."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m framekeeper.settings_table README.md\n")
        return 2
    path = Path(arguments[0])
    path.write_text(updated(path.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
