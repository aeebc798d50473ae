"""How a probe says what it saw: marked lines of JSON on standard output, where libraries print, too."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

MARK = "FRAMEKEEPER-PROBE "


def options() -> dict[str, Any]:
    """What the doctor wants tried: one JSON object on standard input."""
    content = json.load(sys.stdin)
    assert isinstance(content, dict)
    return content


def tell(part: str, ok: bool, seen: str, **figures: float) -> None:
    """One result. `part` names what was tried, `figures` are numbers worth keeping (bytes, seconds)."""
    record = {"part": part, "ok": ok, "seen": seen, "figures": figures}
    sys.stdout.write(f"{MARK}{json.dumps(record)}\n")
    sys.stdout.flush()


def attempt(part: str, call: Callable[[], str]) -> bool:
    """Tell what `call` returns, or the first line of what it raises; returns whether it went well."""
    try:
        seen = call()
    # Anything at all may come out of an extension that does not fit; the words are the finding.
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        tell(part, False, f"{type(error).__name__}: {lines[0] if lines else 'without words'}"[:500])
        return False
    tell(part, True, seen)
    return True
