"""A cause is found whatever build, path, rank, collector or terminal has done to its line."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diagnosis.log_files import crash_cases, example_lines, healthy
from framekeeper.diagnosis.classify import classify

CASES = crash_cases()
#: What a mutation of line numbers must leave alone: numbers that are the words of the error.
FIXED_NUMBERS = {"forward_compat_804"}
PREFIXES = (
    "(DiffusionWorker pid=3110) [rank0]: ",
    "(DiffusionWorker rank=1 pid=9) ERROR 12-02 09:07:11 [diffusion_worker.py:1540] ",
    "[rank3]: ",
    "[default0]:[rank12]:",
    "[rank2]:[E306 06:49:30.118 ProcessGroupNCCL.cpp:685] ",
    "2026-12-02 09:07:11,123 ERROR ",
    "2026-12-02T09:07:11.123456Z stderr F ",
    "[2026-12-02 09:07:11 TP5] ",
    "engine-1  | ERROR 12-02 09:07:11 [core.py:718] ",
    "ERROR:framekeeper.engine:",
    "\x1b[1;36m(EngineCore_DP0 pid=271)\x1b[0;0m ERROR 09-08 09:02:44 [core.py:718] ",
    "1;36m(VllmWorker rank=5 pid=33503) ERROR 03-06 06:49:30 [multiproc_executor.py:375] ",
    "\x1b[31m",
)
CHATTER = [line for log in healthy() for line in log.lines]

cases = st.sampled_from(CASES)


def named(lines: list[str], case: dict[str, Any]) -> bool:
    # On one line a case can be wrapped in words that are a signature too; the case has to win.
    return classify(lines, None).signature == case["id"]


def twice(case: dict[str, Any], lines: list[str]) -> list[str]:
    return lines * len(example_lines(case))


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_prefixes_of_ranks_and_collectors(case: dict[str, Any], prefix: str) -> None:
    assert named([prefix + line for line in example_lines(case)], case)


@settings(max_examples=150, deadline=None)
@given(case=cases, number=st.integers(1, 9999), folder=st.sampled_from(["/a/b", "/srv/x.y-z", "C:\\env"]))
def test_other_line_numbers_and_paths(case: dict[str, Any], number: int, folder: str) -> None:
    line = case["example"]
    line = re.sub(r"(\.(?:cpp|cu|cuh|py|h)\"?:)\d+", rf"\g<1>{number}", line)
    line = (
        line.replace("/pytorch/", f"{folder}/").replace("/root/", f"{folder}/").replace("/app/", f"{folder}/")
    )
    assert named(twice(case, [line]), case)


@settings(max_examples=150, deadline=None)
@given(case=cases, amount=st.floats(0.1, 999), seconds=st.integers(1, 10**6))
def test_other_amounts_and_times(case: dict[str, Any], amount: float, seconds: int) -> None:
    line = re.sub(r"\d+\.\d\d (?=[GM]iB)", f"{amount:.2f} ", case["example"])
    line = re.sub(r"(?<=Timeout\(ms\)=)\d+|(?<=in )\d+(?= seconds)", str(seconds), line)
    assert named(twice(case, [line]), case)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_lines_wrapped_at_every_place(case: dict[str, Any]) -> None:
    line = case["example"]
    logged = "(W pid=7) ERROR 12-02 09:07:11 [a.py:1] "
    for at in range(3, len(line) - 3):
        head, tail = line[:at], line[at:]
        assert named(twice(case, [head, tail]), case), at
        # By a terminal: what follows has no prefix.
        assert named(twice(case, [logged + head, tail]), case), at
        # While another rank writes.
        mixed = [f"(W pid=7) {head}", "(W pid=8) ValueError: Step finished", f"(W pid=7) {tail}"]
        assert named(twice(case, mixed), case), at


@settings(max_examples=100, deadline=None)
@given(case=cases, before=st.lists(st.sampled_from(CHATTER), max_size=50), after=st.integers(0, 50))
def test_in_the_midst_of_a_healthy_log(case: dict[str, Any], before: list[str], after: int) -> None:
    follow = ["vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue."]
    if case["id"] in ("engine_dead", "worker_died", "shm_broadcast_stuck", "config_version_pair"):
        follow = []
    assert named([*before, *example_lines(case), *follow, *CHATTER[:after]], case)


@pytest.mark.parametrize(
    "first",
    [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB.",
        "torch._inductor.exc.InductorError: KeyError: 'op19'",
        "RuntimeError: Dummy run failed: cutlass_scaled_mm, csrc/scaled_mm_entry.cu:209",
    ],
)
def test_the_first_of_two_causes_wins(first: str) -> None:
    second = "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"
    assert classify([first, second], None).line == first
    assert classify([second, first], None).line == second


def test_code_inside_a_traceback_is_no_error() -> None:
    lines = [
        "Traceback (most recent call last):",
        '  File "/a/layerwise.py", line 5, in f',
        '    raise RuntimeError("CUDA out of memory. Tried to allocate")',
        "    ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^",
        "KeyError: 'blocks.3'",
    ]
    found = classify(lines, None)
    assert (found.signature, found.line) == ("unknown", "KeyError: 'blocks.3'")


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text(max_size=300), max_size=20))
def test_no_text_breaks_the_classifier(lines: list[str]) -> None:
    assert classify(lines, None).cause
