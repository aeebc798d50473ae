"""Signatures: known failures as data, read from signatures.yaml.

A pattern is a regular expression over one normalised line (see `line.py`). A space in it matches any run of
white space, also none, so that a pattern still finds an error whose line was wrapped by a terminal or a log
collector. Every pattern needs a piece of plain text outside of groups and alternatives (its anchor): the
expensive search is only made where that text occurs.
"""

from __future__ import annotations

import re
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field

from framekeeper.engine.protocol import PhaseName

FILE = Path(__file__).with_name("signatures.yaml")

Action = Literal[
    "restart_same",
    "next_rung",
    "reduce_shape",
    "clear_caches",
    "stop_fix_host",
    "stop_fix_weights",
    "stop_fix_configuration",
    "none",
]
RungKind = Literal[
    "compile_off",
    "quantization_off",
    "expandable_segments_off",
    "prefetch_sync",
    "unpinned",
    "offload_off",
    "offload",
    "in_process",
    "attention_sdpa",
    "cache_off",
    "smaller_shape",
    "other_backend",
]
#: How much a match says, the most telling first. A `cause` is the failure itself; `general` words wrap a
#: failure that may be named elsewhere; `client` is a wrong request; `follow_on` always comes after something
#: else; a `note` is printed by engines that serve, too.
Grade = Literal["cause", "general", "client", "follow_on", "note"]
#: What is known without any line of the log.
Clue = Literal[
    "host_memory",
    "signal_kill",
    "signal_bus",
    "signal_segv",
    "signal_abort",
    "signal_ill",
    "signal_fpe",
    "signal_term",
    "deadline_load",
    "deadline_warm_up",
    "deadline_step",
    "deadline_decode",
    "deadline_job",
    "frames",
    "storage",
    "silent_exit",
    "unknown",
]

LEAST_ANCHOR = 6


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Pattern(_Record):
    """One expression, and where it counts."""

    match: str = Field(min_length=4)
    phases: tuple[PhaseName, ...] = Field((), strict=False, description="Only while this was being done.")
    warnings: bool = Field(False, description="Counts on a line that was logged as a warning or less.")
    at_least: int = Field(1, ge=1, description="Lines that must match before it counts.")

    @cached_property
    def expression(self) -> re.Pattern[str]:
        """Compiled, with spaces that match any white space or none."""
        return re.compile(self.match.replace(" ", r"\s*"))

    @cached_property
    def anchor(self) -> str:
        """Plain text that every match contains, without white space."""
        return anchor_of(self.match)


class Signature(_Record):
    """A known failure."""

    id: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    grade: Grade = "cause"
    patterns: tuple[Pattern, ...] = Field((), strict=False)
    kernel: tuple[Pattern, ...] = Field((), strict=False, description="Patterns over the kernel's log.")
    clue: Clue | None = None
    cause: str = Field(min_length=15, description="One sentence for the owner of the job and the operator.")
    action: Action
    rungs: tuple[RungKind, ...] = Field((), strict=False, description="Changes that help, any of them.")
    patience: int = Field(
        0, ge=0, le=5, description="Restarts of the same engine before the action is taken."
    )
    poisons: bool
    retry: bool
    sources: tuple[str, ...] = Field((), strict=False)
    origin: str = Field(min_length=4, description="Where the pattern is from.")


def _unwrapped(value: Any) -> Any:
    """YAML writes the usual pattern as a text alone."""
    for key in ("patterns", "kernel"):
        if key in value:
            value[key] = [{"match": each} if isinstance(each, str) else each for each in value[key]]
    return value


@cache
def signatures() -> tuple[Signature, ...]:
    """All signatures, in the order of the file: of two on one line the earlier counts."""
    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    read = yaml.load(FILE.read_text(encoding="utf-8"), loader)  # noqa: S506 - it is a safe loader
    return tuple(Signature.model_validate(_unwrapped(each)) for each in read["signatures"])


@cache
def _orders() -> dict[str, int]:
    return {each.id: number for number, each in enumerate(signatures())}


def order(signature: Signature) -> int:
    """Place in the file; the lower says more."""
    return _orders()[signature.id]


@cache
def by_clue(clue: Clue) -> Signature:
    """The signature that stands for a clue."""
    return next(each for each in signatures() if each.clue == clue)


@cache
def harmless() -> tuple[re.Pattern[str], ...]:
    """Lines that look like errors and are printed by healthy engines."""
    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    read = yaml.load(FILE.read_text(encoding="utf-8"), loader)  # noqa: S506 - it is a safe loader
    return tuple(re.compile(each) for each in read["harmless"])


def anchor_of(expression: str) -> str:
    """The longest run of plain text outside of groups, classes and alternatives, without white space.

    Raises ValueError when there is none of useful length, or when alternatives stand outside of a group.
    """
    runs, current, depth, index = [""], "", 0, 0
    while index < len(expression):
        character = expression[index]
        if character == "\\":
            plain = expression[index + 1]
            index += 1
            # \. is a dot; \d, \s, \b stand for something else.
            character = "" if plain.isalnum() else plain
        elif character == "[":
            index = expression.index("]", index + 2)
            character = ""
        elif character in "()":
            depth += 1 if character == "(" else -1
            character = ""
        elif character in "?*+{":
            # What is repeated or optional is no sure part of a match; neither is the number in braces.
            current = current[:-1]
            index = expression.index("}", index) if character == "{" else index
            character = ""
        elif character == "|" and depth == 0:
            raise ValueError(f"alternatives outside of a group: {expression}")
        elif character in ".^$|":
            character = ""
        if character == "" or depth:
            runs.append(current)
            current = ""
        elif not character.isspace():
            current += character
        index += 1
    best = max([*runs, current], key=len)
    if len(best) < LEAST_ANCHOR:
        raise ValueError(f"no plain text of {LEAST_ANCHOR} characters to search for: {expression}")
    return best
