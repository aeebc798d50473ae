"""What is concluded where the log says nothing, or only what follows."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from framekeeper.diagnosis.classify import Evidence, classify
from framekeeper.engine.exit import Exit

WORKER_KILLED = "ERROR Diffusion worker(s) died unexpectedly: ['DiffusionWorker-0(exitcode=-9, SIGKILL)']"


def ended(number: int) -> Exit:
    return Exit.of(-number)


@pytest.mark.parametrize(
    ("exit", "evidence", "signature"),
    [
        (ended(signal.SIGKILL), {"host_oom_kills": 1}, "host_memory"),
        (ended(signal.SIGKILL), {"host_oom_kills": 0}, "killed_from_outside"),
        (ended(signal.SIGKILL), {}, "killed_from_outside"),
        (Exit.of(137), {"host_oom_kills": 2}, "host_memory"),
        (ended(signal.SIGBUS), {}, "bus_error"),
        (Exit.of(135), {}, "bus_error"),
        (ended(signal.SIGSEGV), {}, "worker_segv"),
        (ended(signal.SIGABRT), {}, "native_abort"),
        (ended(signal.SIGILL), {}, "illegal_cpu_instruction"),
        (ended(signal.SIGTERM), {}, "terminated_from_outside"),
        (Exit.of(0), {}, "ended_silently"),
        (Exit.of(1), {}, "unknown"),
        (Exit.of(-9, "the engine gave no sign of progress"), {"deadline": "step"}, "hung_step"),
        (Exit.of(-9, "warm-up was not done"), {"deadline": "warm_up"}, "hung_warming"),
        (Exit.of(-9, "a job failed"), {"failure_kind": "frames"}, "frames_rejected"),
        (Exit.of(-9, "the supervisor stopped it"), {"host_oom_kills": 0}, "unknown"),
        (None, {"failure_kind": "storage", "healthy": True}, "storage_failed"),
    ],
)
def test_exit_and_counters_without_any_log(exit: Exit | None, evidence: Any, signature: str) -> None:
    assert classify([], exit, Evidence(**evidence)).signature == signature


@pytest.mark.parametrize(
    ("kills", "signature"), [(None, "worker_sigkill"), (1, "host_memory"), (0, "killed_from_outside")]
)
def test_the_kernels_counter_decides_why_a_worker_was_killed(kills: int | None, signature: str) -> None:
    assert classify([WORKER_KILLED], Exit.of(1), Evidence(host_oom_kills=kills)).signature == signature


def test_a_signal_says_more_than_what_only_follows() -> None:
    log = ["vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue."]
    assert classify(log, ended(signal.SIGSEGV)).signature == "worker_segv"
    assert classify(log, Exit.of(1)).signature == "engine_dead"


def test_a_cause_in_the_log_says_more_than_a_deadline() -> None:
    log = ["[rank0]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1)"]
    assert classify(log, Exit.of(-9, "killed"), Evidence(deadline="step")).signature == "nccl_watchdog"


def test_the_kernels_word_about_the_card_comes_first() -> None:
    log = ["RuntimeError: CUDA error: unspecified launch failure"]
    kernel = ("[123456.789012] NVRM: Xid (PCI:0000:02:00): 79, pid=1, GPU has fallen off the bus.",)
    assert classify(log, Exit.of(1), Evidence(kernel_log=kernel)).signature == "gpu_off_bus"
    fault = ("[1.000001] NVRM: Xid (PCI:0000:02:00): 31, pid=7, MMU Fault",)
    assert classify(log, Exit.of(1), Evidence(kernel_log=fault)).signature == "cuda_launch_failure"


def test_the_workers_message_counts_where_the_log_was_lost() -> None:
    evidence = Evidence(
        failure="OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", phase="denoising"
    )
    assert classify([], Exit.of(-9, "a job failed"), evidence).signature == "oom_request"


def test_the_unknown_is_called_unknown_and_treated_the_safe_way() -> None:
    log = ["Traceback (most recent call last):", '  File "a.py", line 1, in f', "KeyError: 'blocks.3'", "bye"]
    found = classify(log, Exit.of(1))
    assert not found.known
    assert (found.action, found.poisons, found.retry) == ("restart_same", True, True)
    assert "KeyError: 'blocks.3'" in found.cause
    assert found.line == "KeyError: 'blocks.3'"


def test_a_wrong_request_leaves_a_living_engine_usable() -> None:
    log = ["ValueError: `height` and `width` have to be divisible by 16 but are 65 and 64."]
    found = classify(log, None)
    assert (found.client_error, found.usable, found.action) == (True, True, "none")


@pytest.mark.parametrize("healthy", [True, False])
def test_only_an_unpoisoned_process_that_proved_itself_is_usable(healthy: bool) -> None:
    oom = classify(["torch.OutOfMemoryError: CUDA out of memory."], None, Evidence(healthy=healthy))
    sticky = classify(
        ["CUDA error: an illegal memory access was encountered"], None, Evidence(healthy=healthy)
    )
    assert (oom.usable, sticky.usable) == (healthy, False)


def test_a_full_disk_spares_an_engine_that_can_go_on() -> None:
    evidence = Evidence(failure_kind="storage", healthy=True)
    found = classify(["OSError: [Errno 28] No space left on device"], None, evidence)
    assert (found.signature, found.action, found.usable) == ("disk_full", "none", True)
