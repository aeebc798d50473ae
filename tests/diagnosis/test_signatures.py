"""The signatures are complete, searchable, and written for people."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from framekeeper.diagnosis import document
from framekeeper.diagnosis.signature import Clue, Signature, anchor_of, by_clue, signatures

ROOT = Path(__file__).parents[2]


def test_ids_are_unique() -> None:
    ids = [each.id for each in signatures()]
    assert len(ids) == len(set(ids))


def test_every_clue_has_one_signature() -> None:
    for clue in get_args(Clue):
        assert by_clue(clue).clue == clue
        assert sum(each.clue == clue for each in signatures()) == 1


@pytest.mark.parametrize("signature", signatures(), ids=lambda each: each.id)
def test_signature_can_be_searched_for_and_explains_itself(signature: Signature) -> None:
    assert signature.patterns or signature.kernel or signature.clue
    for pattern in (*signature.patterns, *signature.kernel):
        assert len(pattern.anchor) >= 6
        # Without a bound a pattern can take quadratic time on a long line.
        assert not re.search(r"(?<!\\)\.[*+]", pattern.match)
        assert not re.search(r"\\[SW][*+]", pattern.match)
    assert signature.cause.endswith(".")
    assert "\n" not in signature.cause
    assert all(each.startswith("https://") for each in signature.sources)
    assert (
        signature.sources or signature.clue or "our own" in signature.origin or "memory" in signature.origin
    )


@pytest.mark.parametrize("signature", signatures(), ids=lambda each: each.id)
def test_changes_are_named_where_a_rung_is_asked_for(signature: Signature) -> None:
    assert bool(signature.rungs) or signature.action != "next_rung"
    if signature.action.startswith("stop_") or signature.action == "none":
        assert not signature.rungs
    if signature.grade in ("client", "note"):
        assert not signature.poisons
        assert signature.action == "none"


@pytest.mark.parametrize(
    ("expression", "anchor"),
    [
        (r"CUDA error: out of memory", "CUDAerror:outofmemory"),
        (r"handles_\.at\(\w+\) INTERNAL", "handles_.at("),
        (r"(?:a|b) colour?ed words", "edwords"),
        (r"x{2,3} seconds [0-9a-f()]+ go", "seconds"),
    ],
)
def test_plain_text_of_an_expression(expression: str, anchor: str) -> None:
    assert anchor_of(expression) == anchor


@pytest.mark.parametrize("expression", [r"abcdefgh|ijklmnop", r"\w+\d+ ab", r"(?:only in a group)"])
def test_an_expression_without_plain_text_is_refused(expression: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - both messages are ours
        anchor_of(expression)


def test_the_page_about_incidents_is_fresh() -> None:
    assert (ROOT / "docs" / "incidents.md").read_text(encoding="utf-8") == document.text(), (
        "run: python -m framekeeper.diagnosis.document > docs/incidents.md"
    )
