"""Reading a log once, from start to end, for the first line that says why the engine ended.

Memory does not grow with the log, and neither does the time a line costs: a line first has to contain a
signature's plain text before its expression is tried. Reading stops soon after the first cause.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import get_args

from framekeeper.diagnosis.index import PIECE, Index, index
from framekeeper.diagnosis.line import Line, clean, normalised
from framekeeper.diagnosis.signature import Grade, Pattern, Signature, harmless, order
from framekeeper.engine.protocol import PhaseName

#: Lines kept around a finding.
BEFORE, AFTER = 20, 19
#: Lines of one source that an error may be wrapped over.
WINDOW = 3
#: So many processes are told apart; a log with more names than this is not an engine's.
SOURCES = 256
QUOTE = 500
#: Characters on either side of a line break that a wrapped error's words are looked for in.
WRAPPED = 300
#: The name of an exception stands within this many characters.
EXCEPTION = 160
#: Texts without any match that are remembered, so that a flood of them costs little.
REMEMBERED = 4096

# The end of a frame's line may have been wrapped away.
_FRAME = re.compile(r'\s*File "')
# A line of code that an error's text can stand in, where the frame's line above it was not recognised.
_CODE = re.compile(r"\s{4,}(?:raise|return|assert|yield|await|with|if|elif|for|except) ")
_NO_DIGITS = str.maketrans("", "", "0123456789")
_NATIVE_FRAME = re.compile(r"\s*(?:frame #\d+: |#\d+ +0x[0-9a-f]+|@ +0x[0-9a-f]+)")
# Tracebacks drawn as boxes show source code, which contains the words of errors that did not happen.
_BOX = frozenset("│╭╰┃┏┗❱")
_EXCEPTION = re.compile(
    r"(?:[A-Za-z_][\w.]*(?:Error|Exception|Failure|Unsupported|Exit|Interrupt|Rejected|Limit\w*|Timeout|Died|Full)"
    r"(?::|$)|Fatal Python error: |terminate called |\w*[Aa]ssert(?:ion)? .*failed)"
)


@dataclass(slots=True)
class Finding:
    """A match: the signature, the error's words, and the lines around it."""

    signature: Signature | None
    line: str
    excerpt: list[str]
    number: int
    wanted: int = AFTER


@dataclass(frozen=True, slots=True)
class _Part:
    """A line that a wrapped error may be a part of, and the index's pieces in it and at its beginning."""

    number: int
    text: str
    packed: str
    pieces: frozenset[int]


@dataclass(slots=True)
class _Source:
    """What has to be remembered of one process between two of its lines."""

    recent: deque[_Part] = field(default_factory=lambda: deque(maxlen=WINDOW))
    in_code: bool = False
    flat: bool = False


@dataclass
class Found:
    """The first finding of every grade, and the first line that looks like an error at all."""

    by_grade: dict[Grade, Finding] = field(default_factory=dict)
    exception: Finding | None = None
    logged: Finding | None = None
    last_line: str = ""
    notes: tuple[str, ...] = ()

    def open_findings(self) -> list[Finding]:
        """Findings whose excerpt is not full yet."""
        every = [*self.by_grade.values(), self.exception, self.logged]
        return [each for each in every if each is not None and each.wanted > 0]


class Scanner:
    """Searches lines for signatures. `read` takes a whole log."""

    def __init__(self, *, phase: PhaseName | None, kernel: bool = False) -> None:
        self.found = Found()
        self._phase = phase
        self._errors = index(kernel=kernel)
        self._warnings = index(kernel=kernel, warnings=True)
        self._counts: dict[tuple[str, str], int] = {}
        self._sources: dict[str, _Source] = {}
        self._fruitless: set[str] = set()
        self._number = 0
        self._last = _Source()
        self._before: deque[str] = deque(maxlen=BEFORE)

    def read(self, log: Iterable[str]) -> Found:
        """Read until the log ends, or until the first cause and what follows it have been seen."""
        for raw in log:
            for single in raw.splitlines() or [""]:
                self._take(single)
            cause = self.found.by_grade.get("cause")
            if cause is not None and cause.wanted <= 0:
                break
        return self.found

    def _take(self, raw: str) -> None:
        shown = clean(raw)
        self._number += 1
        for finding in self.found.open_findings():
            finding.excerpt.append(shown)
            finding.wanted -= 1
        line = normalised(shown)
        text = line.text.strip()
        if text:
            self.found.last_line = text
            self._consider(line, text, shown)
        self._before.append(shown)

    def _consider(self, line: Line, text: str, shown: str) -> None:
        """Search one line, and what the same process wrote just before it together with it."""
        packed = "".join(text.split())
        if line.level not in (None, "error"):
            self._search(self._warnings, self._warnings.pieces_in(packed), text, packed, shown)
            return
        if len(self._sources) > SOURCES:
            self._sources.clear()
        source = self._sources.setdefault(line.source, _Source())
        if self._is_code(source, line.text):
            return
        pieces = self._errors.pieces_in(packed)
        self._search(self._errors, pieces, text, packed, shown)
        part = _Part(self._number, line.text, packed, pieces)
        self._append(source, part, shown, search=line.level is None)
        if self._last is not source and not line.source and line.level is None:
            # A line that was wrapped by a terminal goes on without its prefix.
            self._append(self._last, part, shown, search=True)
        else:
            self._last = source
        self._note_error(line, text, shown)

    @staticmethod
    def _is_code(source: _Source, text: str) -> bool:
        """Whether the line is part of a stack: a frame, or the code below it."""
        if _FRAME.match(text) or _NATIVE_FRAME.match(text) or text.lstrip()[0] in _BOX:
            source.in_code = True
            # Some collectors take the indentation away; then the next line is the frame's code.
            source.flat = text.startswith("File")
            source.recent.clear()
            return True
        if source.flat:
            source.flat = False
            return _EXCEPTION.match(text[:EXCEPTION]) is None
        if (source.in_code and text[0] in " \t") or text.lstrip()[0] == "^" or _CODE.match(text):
            return True
        source.in_code = False
        return False

    def _search(self, index: Index, pieces: frozenset[int], text: str, packed: str, shown: str) -> None:
        for pattern, signature, _ in self._matches(index, pieces, text, packed):
            self._record(pattern, signature, text, shown)

    def _matches(
        self, index: Index, pieces: frozenset[int], text: str, packed: str
    ) -> list[tuple[Pattern, Signature, re.Match[str]]]:
        # A flood of one message that differs in its numbers only is searched once.
        key = packed.translate(_NO_DIGITS)
        if not pieces or key in self._fruitless:
            return []
        found = [
            (pattern, signature, match)
            for _, pattern, signature in index.candidates(pieces, packed)
            if (match := pattern.expression.search(text)) is not None
        ]
        if not found:
            if len(self._fruitless) >= REMEMBERED:
                self._fruitless.clear()
            self._fruitless.add(key)
        return found

    def _append(self, source: _Source, part: _Part, shown: str, *, search: bool) -> None:
        """Add a line to its source, and search it together with what the source wrote before.

        A wrapped error reaches over the last line break: everything else has been searched before.
        """
        recent = source.recent
        if recent:
            seam = recent[-1].packed[1 - PIECE :] + part.packed[: PIECE - 1]
            part = replace(part, pieces=part.pieces | self._errors.pieces_in(seam))
        recent.append(part)
        pieces = frozenset().union(*(each.pieces for each in recent))
        if not search or not pieces or len(recent) < 2:
            return
        earlier = "".join([each.text for each in recent][:-1])[-WRAPPED:]
        joined = earlier + part.text[:WRAPPED]
        for pattern, signature, match in self._matches(self._errors, pieces, joined, "".join(joined.split())):
            if match.start() < len(earlier) < match.end():
                numbers = {each.number for each in recent}
                self._record(pattern, signature, joined[match.start() :], shown, numbers)

    def _record(
        self,
        pattern: Pattern,
        signature: Signature,
        text: str,
        shown: str,
        wrapped: Collection[int] = (),
    ) -> None:
        """Keep a match if it is the first of its grade. `wrapped` are the lines that it was joined from."""
        if (pattern.phases and self._phase not in pattern.phases) or _is_harmless(text):
            return
        key = (signature.id, pattern.match)
        self._counts[key] = self._counts.get(key, 0) + 1
        if self._counts[key] < pattern.at_least:
            return
        if signature.grade == "note" and signature.id not in self.found.notes:
            self.found.notes = (*self.found.notes, signature.id)
        first = self.found.by_grade.get(signature.grade)
        # The whole of a wrapped line may say more than the part that was seen before.
        if first is None or (
            first.number in wrapped and first.signature and order(signature) < order(first.signature)
        ):
            self.found.by_grade[signature.grade] = self._finding(signature, text, shown)

    def _note_error(self, line: Line, text: str, shown: str) -> None:
        """Keep the first line that looks like an error, for the case that no signature matches."""
        wanted = self.found.exception is None and _EXCEPTION.match(text[:EXCEPTION]) is not None
        logged = self.found.logged is None and line.level == "error"
        if (wanted or logged) and not _is_harmless(text):
            finding = self._finding(None, text, shown)
            if wanted:
                self.found.exception = finding
            else:
                self.found.logged = finding

    def _finding(self, signature: Signature | None, text: str, shown: str) -> Finding:
        quote = text if len(text) <= QUOTE else text[: QUOTE - 1] + "…"
        return Finding(signature, quote, [*self._before, shown], self._number)


def _is_harmless(text: str) -> bool:
    return any(each.search(text) for each in harmless())


def better(left: Found, right: Found) -> list[Finding]:
    """The findings of two scans, the most telling grade first, and of one grade `left`'s first."""
    return [
        found.by_grade[grade]
        for grade in get_args(Grade)
        for found in (left, right)
        if grade in found.by_grade
    ]
