"""`framekeeper incidents` in a terminal of 80 columns."""

from __future__ import annotations

import io
from datetime import UTC, datetime

from rich.console import Console

from framekeeper.diagnosis.commands import _block
from framekeeper.jobs.incidents import IncidentRow


def test_in_a_narrow_terminal_the_cause_is_a_sentence_whose_words_are_whole() -> None:
    cause = "The engine was killed from outside, and the kernel does not say that memory was the reason."
    row = IncidentRow(
        id="inc_e0d94cdcf2c7", at=datetime(2026, 12, 2, tzinfo=UTC), host="vm", engine_id="vm/0",
        profile="cpu-tiny", rung=0, phase="idle", video_id=None, attempt=None,
        signature="killed_from_outside", record={"cause": cause, "action": "restart_same"},
        ready_again_seconds=11.2,
    )  # fmt: skip
    printed = io.StringIO()
    console = Console(file=printed, width=80)
    for line in _block(row):
        console.print(line, highlight=False, markup=False)
    lines = printed.getvalue().splitlines()
    assert max(len(line.rstrip()) for line in lines) <= 80
    assert cause in " ".join(" ".join(lines).split())
    assert lines[0].startswith("inc_e0d94cdcf2c7  12-0")
    assert lines[-1].strip() == "restart same; ready after 11 s"
