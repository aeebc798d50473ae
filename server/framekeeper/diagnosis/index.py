"""Which expressions are worth trying on a text: those whose plain text occurs in it.

Hundreds of expressions cannot be tried on every line of a long log, and neither can hundreds of plain texts
be searched for. So few short pieces are chosen that every plain text contains one of, and only behind a
piece that occurs are the texts themselves looked at.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache

from framekeeper.diagnosis.signature import Pattern, Signature, signatures

PIECE = 4

Search = tuple[str, Pattern, Signature]


class Index:
    """Finds the searches that may match, in the order of the signatures' file."""

    def __init__(self, searches: Sequence[Search]) -> None:
        self._buckets: list[tuple[str, list[tuple[int, Search]]]] = []
        left = dict(enumerate(searches))
        while left:
            counts = Counter(piece for search in left.values() for piece in _pieces(search[0]))
            # The most frequent; of equals the first in the alphabet, so that runs do not differ.
            piece = min(counts, key=lambda each: (-counts[each], each))
            bucket = [(number, search) for number, search in left.items() if piece in search[0]]
            self._buckets.append((piece, bucket))
            for number, _ in bucket:
                del left[number]

    def pieces_in(self, packed: str) -> frozenset[int]:
        """Numbers of the pieces that occur in a text without white space."""
        return frozenset(number for number, (piece, _) in enumerate(self._buckets) if piece in packed)

    def candidates(self, pieces: frozenset[int], packed: str) -> list[Search]:
        """Searches behind these pieces whose plain text is in `packed`."""
        hits = [each for piece in pieces for each in self._buckets[piece][1] if each[1][0] in packed]
        hits.sort(key=lambda each: each[0])
        return [search for _, search in hits]


def _pieces(anchor: str) -> set[str]:
    return {anchor[start : start + PIECE] for start in range(len(anchor) - PIECE + 1)}


@cache
def index(*, kernel: bool = False, warnings: bool = False) -> Index:
    """The index over all patterns; `warnings` only over those that count on a warning."""
    return Index(
        [
            (pattern.anchor, pattern, signature)
            for signature in signatures()
            for pattern in (signature.kernel if kernel else signature.patterns)
            if pattern.warnings or not warnings
        ]
    )
