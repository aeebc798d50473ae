"""Logs kept beside the tests, and the case files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent


class StoredLog(NamedTuple):
    """A log with what is expected of it, from its `# key: value` lines."""

    name: str
    lines: list[str]
    facts: dict[str, str]


def unseen() -> list[StoredLog]:
    """Whole logs that were written apart from the patterns."""
    logs = []
    for file in sorted((HERE / "logs" / "unseen").glob("*.log")):
        lines = file.read_text(encoding="utf-8").split("\n")
        facts = dict(line[2:].split(": ") for line in lines if line.startswith("# "))
        logs.append(StoredLog(file.name, [line for line in lines if not line.startswith("# ")], facts))
    return logs


def healthy() -> list[StoredLog]:
    """Logs of real engines that started, served and ended cleanly."""
    return [
        StoredLog(file.name, file.read_text(encoding="utf-8").split("\n"), {})
        for file in sorted((HERE / "logs" / "healthy").glob("*.log"))
    ]


def crash_cases() -> list[dict[str, Any]]:
    """Known failures, one example line each."""
    text = (HERE / "crash_cases.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def example_lines(case: dict[str, Any]) -> list[str]:
    """The case's line; twice where one alone is harmless."""
    return [case["example"]] * (2 if case["id"] == "shm_broadcast_stuck" else 1)
