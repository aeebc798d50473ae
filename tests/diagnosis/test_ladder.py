"""What is decided after which failure and which history."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framekeeper.diagnosis.classify import Diagnosis
from framekeeper.diagnosis.ladder import Decision, History, Past, Policy, Situation, decide, way_up
from framekeeper.diagnosis.limit import Shape, smaller
from framekeeper.diagnosis.rungs import helpful_rung, next_rung
from framekeeper.diagnosis.signature import signatures
from framekeeper.profiles.load import load_profile, profile_names
from framekeeper.profiles.schema import Profile, Rung
from profile_samples import profile

CONFIGS = Path(__file__).parents[2] / "configs" / "profiles"
NOW = 1_000_000.0
BY_ID = {each.id: each for each in signatures()}


RUNGS = (
    Rung(name="eager", change={"compile": "off"}),
    Rung(name="layerwise", change={"offload": "layerwise", "offload_prefetch": "sync"}),
    Rung(name="smaller", change={"admits": {"size": "832x480"}}),
)


COMPILED = profile(compile="regional", admits={"size": "1280x720", "num_frames": 81}, fallbacks=list(RUNGS))
FP8 = profile(quantization="fp8", fallbacks=[Rung(name="bf16", change={"quantization": "none"})])
OFFLOADED = profile(offload="layerwise", fallbacks=[Rung(name="sync", change={"offload_prefetch": "sync"})])


@pytest.fixture(scope="module")
def h200() -> Profile:
    return COMPILED


def diagnosis(id: str, **changes: Any) -> Diagnosis:
    known = BY_ID[id]
    values: dict[str, Any] = {
        "signature": id,
        "known": known.clue != "unknown",
        "cause": known.cause,
        "action": known.action,
        "rungs": known.rungs,
        "patience": known.patience,
        "poisons": known.poisons,
        "retry": known.retry,
        "ended": True,
        "usable": False,
        "client_error": known.grade == "client",
    }
    return Diagnosis(**(values | changes))


def past(
    id: str, count: int, *, rung: int = 0, seconds_apart: float = 60, served: bool = True
) -> tuple[Past, ...]:
    """So many earlier ends, the last one `seconds_apart` ago."""
    return tuple(
        Past(
            time=NOW - seconds_apart * (count - number),
            signature=id,
            rung=rung,
            after=rung,
            action="restart_same",
            served=served,
            client_error=BY_ID[id].grade == "client",
        )
        for number in range(count)
    )


def decided(
    of: Profile,
    what: Diagnosis,
    before: tuple[Past, ...] = (),
    *,
    rung: int = 0,
    job_ends: int = 0,
    **more: Any,
) -> Decision:
    history = History(past=before, job_ends=job_ends)
    return decide(Situation(diagnosis=what, history=history, profile=of, rung=rung, now=NOW, **more))


@pytest.mark.parametrize(
    ("signature", "rung", "action", "name"),
    [
        ("compile_inductor_error", 0, "next_rung", "eager"),
        ("compile_no_cc", 0, "next_rung", "eager"),
        ("oom_load", 0, "next_rung", "layerwise"),
        ("oom_load", 2, "next_rung", "smaller"),
        ("alloc_expandable_handles_assert", 0, "next_rung", "eager"),  # no rung changes it: the next one
        ("oom_load", 3, "restart_same", "smaller"),  # the lowest: the same again, until it is a loop
        ("cache_inductor_hash", 0, "clear_caches", "profile"),
        ("unknown", 0, "restart_same", "profile"),
        ("worker_segv", 0, "restart_same", "profile"),
        ("driver_too_old", 0, "stop", "profile"),
        ("weights_truncated", 1, "stop", "eager"),
        ("flash_attn_arch", 0, "stop", "profile"),
        ("host_memory", 0, "restart_same", "profile"),
        ("client_shape", 0, "restart_same", "profile"),  # it ended all the same
    ],
)
def test_first_failure(h200: Profile, signature: str, rung: int, action: str, name: str) -> None:
    made = decided(h200, diagnosis(signature), rung=rung)
    assert (made.action, made.rung_name) == (action, name)
    assert made.restart is (action != "stop")


@pytest.mark.parametrize(
    ("signature", "fix"),
    [("gpu_off_bus", "host"), ("weights_missing", "weights"), ("abi_undefined_symbol", "configuration")],
)
def test_a_stop_says_what_has_to_be_repaired(h200: Profile, signature: str, fix: str) -> None:
    made = decided(h200, diagnosis(signature))
    assert (made.action, made.fix, made.restart) == ("stop", fix, False)


@pytest.mark.parametrize(
    ("signature", "before", "action"),
    [
        ("unknown", 1, "restart_same"),
        ("unknown", 2, "next_rung"),
        ("cache_inductor_hash", 1, "next_rung"),
        ("host_memory", 1, "restart_same"),
        ("host_memory", 2, "stop"),
        ("address_in_use", 2, "restart_same"),
        ("address_in_use", 3, "next_rung"),
    ],
)
def test_the_same_failure_again(h200: Profile, signature: str, before: int, action: str) -> None:
    assert decided(h200, diagnosis(signature), past(signature, before)).action == action


def test_pauses_grow_with_every_end_and_begin_anew_on_another_rung(h200: Profile) -> None:
    ids = ["unknown", "worker_segv", "cuda_device_assert", "terminated_from_outside"]
    delays = []
    for count in range(4):
        before = tuple(past(ids[number], 1)[0] for number in range(count))
        delays.append(decided(h200, diagnosis("hung_step"), before).delay_seconds)
    assert delays == [0.0, 1.0, 5.0, 15.0]
    assert decided(h200, diagnosis("hung_step"), past("unknown", 3), rung=1).delay_seconds == 0.0


def test_a_crash_loop_goes_down_and_on_the_lowest_rung_it_is_over(h200: Profile) -> None:
    mixed = past("unknown", 1) + past("worker_segv", 1) + past("cuda_busy", 1) + past("hung_step", 1)
    assert decided(h200, diagnosis("cuda_device_assert"), mixed).action == "next_rung"
    lowest = len(h200.fallbacks)
    made = decided(h200, diagnosis("unknown"), past("unknown", 4, rung=lowest), rung=lowest)
    assert (made.action, made.restart) == ("stop", False)
    assert "5 times in a row" in made.reason


def test_ends_of_an_engine_that_serves_in_between_are_no_loop(h200: Profile) -> None:
    rare = past("unknown", 6, seconds_apart=1500)
    assert decided(h200, diagnosis("worker_segv"), rare).action == "restart_same"


def test_slow_starts_that_never_get_ready_are_a_loop_all_the_same(h200: Profile) -> None:
    lowest = len(h200.fallbacks)
    slow = past("hung_loading", 4, rung=lowest, seconds_apart=2400, served=False)
    assert decided(h200, diagnosis("hung_loading"), slow, rung=lowest).action == "stop"


def test_client_errors_never_count(h200: Profile) -> None:
    wrong = past("client_shape", 20, seconds_apart=1)
    made = decided(h200, diagnosis("worker_segv"), wrong)
    assert (made.action, made.delay_seconds) == ("restart_same", 0.0)
    alive = diagnosis("client_shape", ended=False, usable=True)
    made = decided(h200, alive, past("unknown", 4), job=True)
    assert (made.action, made.restart, made.job) == ("serve_on", False, "fail")


@pytest.mark.parametrize(
    ("signature", "ends", "job", "fate"),
    [
        ("unknown", 0, True, "retry"),
        ("unknown", 1, True, "quarantine"),
        ("cuda_illegal_access", 1, True, "quarantine"),
        ("host_memory", 5, True, "retry"),  # the host's fault, not the job's
        ("cache_inductor_hash", 5, True, "retry"),
        ("oom_request", 0, True, "fail"),
        ("frames_rejected", 0, True, "fail"),
        ("client_value", 0, True, "fail"),
        ("unknown", 5, False, "none"),
    ],
)
def test_fate_of_the_job(h200: Profile, signature: str, ends: int, job: bool, fate: str) -> None:
    made = decided(
        h200, diagnosis(signature), job=job, job_ends=ends, shape=Shape(width=832, height=480, num_frames=81)
    )
    assert made.job == fate


def test_what_did_not_fit_is_refused_for_a_while(h200: Profile) -> None:
    shape = Shape(width=1280, height=720, num_frames=81)
    made = decided(h200, diagnosis("oom_request"), job=True, shape=shape)
    assert made.action == "reduce_shape"
    assert made.restart
    assert made.limit is not None
    assert made.limit.shape.tokens < shape.tokens
    assert made.limit.until > NOW
    assert "1280x720, 81 frames" in made.limit.reason


def test_an_engine_that_is_clean_after_running_out_of_memory_is_not_restarted(h200: Profile) -> None:
    clean = diagnosis("oom_request", ended=False, usable=True)
    made = decided(h200, clean, job=True, shape=Shape(width=832, height=480, num_frames=81))
    assert (made.action, made.restart, made.delay_seconds) == ("reduce_shape", False, 0.0)


def test_out_of_memory_without_a_job_needs_another_rung(h200: Profile) -> None:
    assert decided(h200, diagnosis("oom_request")).rung_name == "layerwise"


@given(
    width=st.integers(1, 120).map(lambda n: n * 16),
    height=st.integers(1, 120).map(lambda n: n * 16),
    latent=st.integers(0, 60),
)
def test_a_smaller_shape_is_smaller_legal_and_the_last_one_is_reached(
    width: int, height: int, latent: int
) -> None:
    shape: Shape | None = Shape(width=width, height=height, num_frames=4 * latent + 1)
    for _ in range(60):
        assert shape is not None
        lower = smaller(shape)
        if lower is None:
            return
        assert lower.tokens < shape.tokens
        assert (lower.num_frames - 1) % 4 == lower.width % 16 == lower.height % 16 == 0
        shape = lower
    pytest.fail("never reached the end")


@given(
    id=st.sampled_from(sorted(BY_ID)),
    before=st.lists(st.tuples(st.sampled_from(sorted(BY_ID)), st.integers(0, 3)), max_size=8),
    rung=st.integers(0, 3),
    ended=st.booleans(),
    job=st.booleans(),
)
def test_any_history_gives_a_decision_that_keeps_the_promises(
    id: str, before: list[tuple[str, int]], rung: int, ended: bool, job: bool
) -> None:
    known = BY_ID[id]
    what = diagnosis(id, ended=ended, usable=not ended and not known.poisons)
    history = tuple(past(each, 1, rung=at)[0] for each, at in before)
    made = decided(COMPILED, what, history, rung=rung, job=job)
    assert made == decided(COMPILED, what, history, rung=rung, job=job)
    assert rung <= made.rung <= len(COMPILED.fallbacks)
    if known.poisons or ended:
        assert made.action != "serve_on"
        assert made.restart or made.action == "stop"
    assert (made.job == "none") is not job
    assert made.reason
    assert made.action != "next_rung" or made.rung > rung


def test_every_shipped_profile_reaches_failed_after_finitely_many_ends() -> None:
    for name in profile_names(CONFIGS):
        shipped = load_profile(name, CONFIGS)
        rung, before = 0, []
        for number in range(60):
            time = NOW + number
            situation = Situation(
                diagnosis=diagnosis("unknown"),
                history=History(past=tuple(before)),
                profile=shipped,
                rung=rung,
                now=time,
            )
            made = decide(situation)
            if made.action == "stop":
                break
            before.append(
                Past(time=time, signature="unknown", rung=rung, after=made.rung, action=made.action)
            )
            rung = made.rung
        else:
            pytest.fail(f"{name} is started again for ever")
        assert rung == len(shipped.fallbacks)


def test_the_first_rung_that_makes_the_change_is_taken(h200: Profile) -> None:
    assert helpful_rung(h200, 0, ["smaller_shape"]) == 3
    assert helpful_rung(h200, 1, ["compile_off"]) is None
    assert next_rung(h200, 1, ["compile_off"]) == 2
    assert next_rung(h200, 3, ["compile_off"]) is None
    assert helpful_rung(FP8, 0, ["quantization_off"]) == 1
    assert helpful_rung(OFFLOADED, 0, ["prefetch_sync", "offload_off"]) == 1


def test_only_an_order_or_a_quiet_time_leads_up() -> None:
    step = Past(time=NOW, signature="oom_load", rung=0, after=2, action="next_rung")
    history = History(past=(step,))
    manual, quiet = Policy(), Policy(quiet_seconds=600)
    assert way_up(history, 2, now=NOW + 10**6, policy=manual) == 2
    assert way_up(history, 2, now=NOW + 599, policy=quiet) == 2
    assert way_up(history, 2, now=NOW + 600, policy=quiet) == 0
    assert way_up(history, 0, now=NOW + 600, policy=quiet) == 0


def test_a_way_up_that_failed_before_is_tried_later() -> None:
    steps = tuple(
        Past(time=NOW + number, signature="oom_load", rung=0, after=2, action="next_rung")
        for number in range(2)
    )
    quiet = Policy(quiet_seconds=600)
    assert way_up(History(past=steps), 2, now=NOW + 700, policy=quiet) == 2
    assert way_up(History(past=steps), 2, now=NOW + 1300, policy=quiet) == 0
