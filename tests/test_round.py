"""What goes on for ever survives any error of one round, and tells those that nobody else tells."""

from __future__ import annotations

import pytest
import structlog
from structlog.testing import capture_logs

from framekeeper import round as rounds
from framekeeper.errors import DatabaseUnavailable


@pytest.mark.parametrize(
    ("error", "told"),
    [(None, []), (DatabaseUnavailable(), []), (ValueError("x"), [("looking failed", "error")])],
)
async def test_a_round_goes_well_or_is_told_once_and_never_raises(
    error: Exception | None, told: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def look() -> None:
        if error is not None:
            raise error

    monkeypatch.setattr(rounds, "log", structlog.get_logger())
    with capture_logs() as lines:
        assert await rounds.went_well(look, "looking") is (error is None)
    assert [(line["event"], line["log_level"]) for line in lines] == told
