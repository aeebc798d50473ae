"""Whole logs: of healthy engines, of failures, and very long ones.

Those in logs/unseen were written apart from the patterns, in the forms that public reports have; one that
found a gap stayed.
"""

from __future__ import annotations

import random
import time

import pytest

from diagnosis.log_files import StoredLog, healthy, unseen
from framekeeper.diagnosis.classify import Evidence, classify
from framekeeper.diagnosis.scan import Scanner
from framekeeper.diagnosis.signature import signatures
from framekeeper.engine.exit import Exit


@pytest.mark.parametrize("log", unseen(), ids=lambda log: log.name)
def test_cause_in_a_whole_log_written_apart_from_the_patterns(log: StoredLog) -> None:
    evidence = Evidence(phase=log.facts.get("phase"))  # type: ignore[arg-type]
    found = classify(log.lines, Exit.of(int(log.facts.get("exit", "1"))), evidence)
    assert found.signature == log.facts["expect"]
    assert found.line
    assert len(found.excerpt) <= 40


@pytest.mark.parametrize("log", healthy(), ids=lambda log: log.name)
@pytest.mark.parametrize("phase", [None, "importing", "loading", "warming", "denoising"])
def test_a_healthy_log_matches_nothing(log: StoredLog, phase: str | None) -> None:
    found = Scanner(phase=phase).read(log.lines)  # type: ignore[arg-type]
    assert found.by_grade == {}
    assert found.exception is None
    assert found.logged is None


def test_every_single_line_of_a_healthy_log_matches_nothing_at_any_level() -> None:
    for log in healthy():
        for line in log.lines:
            for each in signatures():
                for pattern in each.patterns:
                    if each.grade in ("cause", "general"):
                        assert not pattern.expression.search(line), (each.id, line)


def test_warnings_of_a_gpu_engine_that_serves_match_nothing() -> None:
    lines = [
        "WARNING 12-02 09:07:19 [ring_globals.py:97] FlashInfer ring kernels are unavailable. Reason: no",
        "boundary_ratio is required for T2V generation. using default value 0.875",
        "n:1:1 [1] NCCL INFO Plugin load returned 2 : libnccl-net.so: cannot open shared object file",
        "n:1:2 [0] NCCL INFO [Service thread] Connection closed by localRank 0",
        "[W socket.cpp:697] [c10d] The client socket has failed to connect to [localhost]:29500 (errno: 97)",
        "OutOfResources: out of resource: shared memory, Required: 9, limit: 8. Ignoring this choice.",
        "image.py:14: UserWarning: Failed to load image Python extension: undefined symbol: x",
        "WARNING 12-02 09:07:20 [pin.py:3] CUDA out of memory with a larger buffer; a smaller one is used",
        "[rank0]:[W1202 09:07:12.1 ProcessGroupNCCL.cpp:1] Warning: destroy_process_group() was not called",
    ]
    assert Scanner(phase="warming").read(lines).by_grade == {}


@pytest.mark.parametrize(
    "kind", ["healthy", "random words", "errors without a name", "long lines", "numbered near misses"]
)
def test_a_hundred_thousand_lines_take_linear_time(kind: str) -> None:
    words = random.Random(1)
    chatter = [line for log in healthy() for line in log.lines]
    count = 20_000 if kind == "long lines" else 100_000

    def line(number: int) -> str:
        match kind:
            case "healthy":
                return chatter[number % len(chatter)]
            case "random words":
                return " ".join("".join(words.choices("abcdefghij", k=8)) for _ in range(8))
            case "errors without a name":
                return f"(W pid=3) ERROR 12-02 09:07:21 [a.py:1] CUDA_ {words.random()} failed"
            case "long lines":
                return "Error " + "x" * 5_000
            case _:
                return f"RuntimeError: CUDA error RuntimeError: CUDA error {number}"

    lines = [line(number) for number in range(count)]
    started = time.process_time()
    found = classify(lines, Exit.of(1))
    # 1 to 2 s on a slow, shared core; anything worse than linear takes minutes.
    assert time.process_time() - started < 8
    assert not found.known


def test_the_excerpt_holds_the_lines_around_the_error() -> None:
    lines = [f"line {number}" for number in range(100)]
    lines[50] = "RuntimeError: CUDA error: an illegal memory access was encountered"
    found = classify(lines, Exit.of(1))
    assert found.excerpt == tuple(lines[30:70])
