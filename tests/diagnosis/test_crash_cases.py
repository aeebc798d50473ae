"""Every known failure gets the cause, the action and the flags that its report calls for."""

from __future__ import annotations

from typing import Any

import pytest

from diagnosis.log_files import crash_cases, example_lines
from framekeeper.diagnosis.classify import classify
from framekeeper.engine.exit import Exit

#: What a case calls its action, our action, and a change that it names.
ACTIONS = {
    "disable_expandable_segments": ("next_rung", "expandable_segments_off"),
    "restart_engine_smaller": ("next_rung", "smaller_shape"),
    "disable_offload_async": ("next_rung", "prefetch_sync"),
    "disable_quantization": ("next_rung", "quantization_off"),
    "disable_compile": ("next_rung", "compile_off"),
    "fatal_config": ("stop_fix_configuration", None),
    "fix_host": ("stop_fix_host", None),
    "fix_weights": ("stop_fix_weights", None),
    "reduce_request": ("reduce_shape", None),
    "restart_engine": ("restart_same", None),
    "clear_cache": ("clear_caches", None),
    "none": ("none", None),
}


@pytest.mark.parametrize("case", crash_cases(), ids=lambda case: case["id"])
def test_case_is_named_as_its_report_says(case: dict[str, Any]) -> None:
    found = classify(example_lines(case), None)
    action, change = ACTIONS[case["action"]]
    assert found.signature == case["id"]
    assert found.action == action
    assert change is None or change in found.rungs
    assert (found.poisons, found.retry) == (case["poisons_process"], case["retry_job"])
    assert found.line is not None


def test_one_line_about_the_broadcast_queue_is_harmless() -> None:
    line = "No available shared memory broadcast block found in 60 seconds"
    assert classify([line], Exit.of(1)).signature == "unknown"


def test_a_pair_of_versions_that_only_warns_is_not_the_cause_of_an_end() -> None:
    warning = "RuntimeWarning: vLLM and vLLM-Omni appear to have mismatched major/minor versions"
    found = classify([warning], Exit.of(1))
    assert (found.signature, found.notes) == ("unknown", ("config_version_pair",))
    found = classify([warning, "RuntimeError: CUDA error: invalid device ordinal"], Exit.of(1))
    assert (found.signature, found.notes) == ("config_invalid_ordinal", ("config_version_pair",))


@pytest.mark.parametrize(
    ("phase", "signature"),
    [
        ("loading", "oom_load"),
        ("dummy_run", "oom_warmup"),
        ("warming", "oom_warmup"),
        ("decoding", "oom_request"),
    ],
)
def test_running_out_of_memory_means_something_else_in_every_phase(phase: Any, signature: str) -> None:
    from framekeeper.diagnosis.classify import Evidence

    line = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 640.00 MiB."
    assert classify([line], Exit.of(1), Evidence(phase=phase)).signature == signature
