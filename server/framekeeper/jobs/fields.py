"""Reading the fields of a request strictly, and collecting every fault instead of stopping at the first.

Fields come from JSON, where a number is a number, or from a form, where it is text: both are read to the same
value or refused. Nothing is rounded, trimmed or guessed.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from framekeeper.errors import InvalidRequest

INTEGER = re.compile(r"[+-]?[0-9]{1,20}", re.ASCII)
#: What a client sends that holds a whole number as a float.
WHOLE = re.compile(r"[+-]?[0-9]{1,15}\.0{1,9}", re.ASCII)
NUMBER = re.compile(r"[+-]?([0-9]{1,40}(\.[0-9]{0,40})?|\.[0-9]{1,40})([eE][+-]?[0-9]{1,4})?", re.ASCII)
NOT_FINITE = re.compile(r"[+-]?(nan|inf|infinity)", re.ASCII | re.IGNORECASE)
#: Longest piece of a client's value that a message repeats.
SHOWN = 60


def plain(value: float) -> str:
    """A limit as a message names it: 2592000, not 2.592e+06."""
    return str(int(value)) if value == int(value) else f"{value:g}"


def shown(value: Any) -> str:
    """The client's value as a message may repeat it: short, printable, on one line."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**SHOWN:
        return "an integer of very many digits"
    if isinstance(value, list | dict):
        # Its repr may be as deep as the body allowed.
        return "an array" if isinstance(value, list) else "an object"
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"


@dataclass(slots=True)
class Fields:
    """The fields of one request, and the faults found in them so far.

    A JSON null counts as absent. The readers return None for an absent field and also for a faulty one, whose
    fault is then in `faults`.
    """

    values: Mapping[str, Any]
    faults: list[tuple[str, str]] = field(default_factory=list)

    def present(self, name: str) -> bool:
        """Whether the client gave this field."""
        return self.values.get(name) is not None

    def refuse(self, name: str, message: str) -> None:
        """Note a fault of a field; `message` is a whole sentence."""
        self.faults.append((name, message))

    def faulty(self, name: str) -> bool:
        """Whether a fault of this field was noted."""
        return any(where == name for where, _ in self.faults)

    def raise_faults(self) -> None:
        """Raise one InvalidRequest that has all faults, when there are any; `param` is the first one's."""
        if self.faults:
            raise InvalidRequest(" ".join(message for _, message in self.faults), param=self.faults[0][0])

    def text(self, name: str, *, longest: int) -> str | None:
        """Text that PostgreSQL and a tokenizer can take."""
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, str):
            self.refuse(name, f"{name}={shown(value)} is not text: set a string.")
        elif len(value) > longest:
            over = len(value) - longest
            self.refuse(
                name, f"{name} has {len(value)} characters, the most is {longest}: shorten it by {over}."
            )
        elif "\0" in value:
            self.refuse(name, f"{name} has a NUL character at position {value.index(chr(0))}: remove it.")
        elif any("\ud800" <= character <= "\udfff" for character in value):
            self.refuse(name, f"{name} has half of a surrogate pair: send valid Unicode.")
        else:
            return value
        return None

    def integer(self, name: str, least: int, most: int, advice: str = "") -> int | None:
        """A whole number within a range."""
        value = self.values.get(name)
        if value is None:
            return None
        number: int | None = None
        if isinstance(value, int) and not isinstance(value, bool):
            number = value
        elif isinstance(value, float) and value.is_integer():
            # JSON does not tell 5.0 from 5.
            number = int(value)
        elif isinstance(value, str) and INTEGER.fullmatch(value):
            number = int(value)
        elif isinstance(value, str) and WHOLE.fullmatch(value):
            number = int(value.partition(".")[0])
        wanted = advice or f"set an integer from {least} to {most}"
        if number is None:
            self.refuse(name, f"{name}={shown(value)} is not an integer: {wanted}.")
        elif not least <= number <= most:
            side = f"less than {least}" if number < least else f"more than {most}"
            self.refuse(name, f"{name}={shown(value)} is {side}: {wanted}.")
        else:
            return number
        return None

    def number(
        self, name: str, least: float, most: float, *, above: bool = False, advice: str = ""
    ) -> float | None:
        """A finite number within a range; with `above` the lower end does not belong to it."""
        value = self.values.get(name)
        if value is None:
            return None
        number = _float(value)
        bounds = f"{'above' if above else 'from'} {plain(least)} {'up ' if above else ''}to {plain(most)}"
        wanted = advice or f"set a number {bounds}"
        if number is None:
            self.refuse(name, f"{name}={shown(value)} is not a number: {wanted}.")
        elif not math.isfinite(number):
            self.refuse(name, f"{name}={shown(value)} is not finite: {wanted}.")
        elif number < least or (above and number == least):
            self.refuse(name, f"{name}={shown(value)} is too small: {wanted}.")
        elif number > most:
            self.refuse(name, f"{name}={shown(value)} is more than {plain(most)}: {wanted}.")
        else:
            return number
        return None


def _float(value: Any) -> float | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, str) and (NUMBER.fullmatch(value) or NOT_FINITE.fullmatch(value)):
        return float(value)
    if isinstance(value, int):
        # An integer beyond a double's range is beyond every limit all the same.
        return float(max(-(10**300), min(10**300, value)))
    return value if isinstance(value, float) else None
