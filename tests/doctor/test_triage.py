"""Triage against the fault backend: for every layer a fault that only that layer has."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from framekeeper.doctor.triage import report, script
from framekeeper.doctor.triage.outcome import Outcome
from framekeeper.doctor.triage.plan import Step, plan, small_job
from framekeeper.doctor.triage.route import follow
from framekeeper.doctor.triage.verdict import Verdict, judge
from framekeeper.engine import leftovers
from framekeeper.profiles.facts import HostFacts
from framekeeper.profiles.load import load_profile, profile_names
from framekeeper.profiles.schema import Profile
from profile_samples import GIB, card, host, profile
from system import PROJECT

BROKEN = "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"
ALWAYS = {"at": "warm_up", "what": "raise", "text": BROKEN, "times": None}


def sick(home: Path, *faults: dict[str, Any], **changes: Any) -> Profile:
    """A profile of a card that compiles, quantises and runs in two processes, on the fault backend."""
    home.mkdir(parents=True, exist_ok=True)
    model = home / "script.json"
    model.write_text(json.dumps({"step_seconds": 0, "faults": [ALWAYS | fault for fault in faults]}))
    everything = {
        "backend": "fault",
        "model": str(model),
        "compile": "regional",
        "quantization": "fp8",
        "executor": "multiprocess",
        "devices": {"count": 2},
        "parallel": {"ulysses": 2},
        "accept_risk": {"quantization-with-compile": "a test of triage, on no card at all"},
    }
    return profile(**(everything | changes))


def facts_of(home: Path) -> HostFacts:
    return host(
        cards=(card(0), card(1)),
        run_directory=home / "run",
        cache_directory=home / "var-cache",
        temporary_directory=home,
    )


def steps_of(home: Path, wanted: Profile, **how: Any) -> list[Step]:
    return plan(small_job(wanted, **how), facts_of(home), home / "fresh")


async def triage(home: Path, wanted: Profile, **how: Any) -> tuple[list[Outcome], Verdict]:
    outcomes = await follow(steps_of(home, wanted, **how), Path(sys.executable), home)
    return outcomes, judge(outcomes)


def with_caches(home: Path, wanted: Profile) -> Path:
    """Leave something in the caches of the configured launch."""
    launch = steps_of(home, wanted)[0].launch
    assert launch is not None
    broken = Path(launch.environment["TORCHINDUCTOR_CACHE_DIR"]) / "broken"
    broken.parent.mkdir(parents=True)
    broken.write_text("a graph that was half written")
    return broken


THROUGH_THE_WORKER = {"environment": {"FRAMEKEEPER_CHANNEL_FD": True}}
LAYERS: dict[str, dict[str, Any]] = {
    "caches": {"file": "$TORCHINDUCTOR_CACHE_DIR/broken"},
    "compile": {"options": {"compile": ["regional", "full"]}},
    "quantization": {"options": {"quantization": ["fp8"]}},
    "processes": {"options": {"executor": ["multiprocess"]}},
    "direct": THROUGH_THE_WORKER,
}


@pytest.mark.slow
@pytest.mark.parametrize("layer", LAYERS)
async def test_the_layer_that_alone_has_the_fault_is_named(layer: str, tmp_path: Path) -> None:
    wanted = sick(tmp_path, {"when": LAYERS[layer]})
    evidence = with_caches(tmp_path, wanted)
    outcomes, verdict = await triage(tmp_path, wanted)
    assert (verdict.layer, verdict.status) == (layer, 1)
    names = [outcome.step.name for outcome in outcomes]
    at = names.index(layer)  # type: ignore[arg-type]
    assert [outcome.state for outcome in outcomes[:at]] == ["failed"] * at
    assert outcomes[at].state == "passed"
    assert {outcome.state for outcome in outcomes[at + 1 :]} <= {"not tried", "skipped"}
    assert {outcome.signature for outcome in outcomes[:at]} == {"cuda_illegal_access"}
    assert " at fault: without " in verdict.sentence
    assert verdict.sentence.endswith("fails (cuda_illegal_access).")
    assert evidence.exists(), "triage leaves the caches as they are"


@pytest.mark.slow
async def test_a_profile_that_works_is_tried_once_and_nothing_is_found(tmp_path: Path) -> None:
    outcomes, verdict = await triage(tmp_path, sick(tmp_path))
    assert (verdict.layer, verdict.status) == (None, 0)
    assert [outcome.state for outcome in outcomes].count("passed") == 1
    assert outcomes[0].state == "passed"


@pytest.mark.slow
async def test_a_fault_that_nothing_cures_is_the_runtimes_or_the_hosts_and_has_its_signature(
    tmp_path: Path,
) -> None:
    outcomes, verdict = await triage(tmp_path, sick(tmp_path, {}))
    assert (verdict.layer, verdict.status) == ("runtime or host", 1)
    assert "cuda_illegal_access" in verdict.sentence
    assert [outcome.state for outcome in outcomes] == [
        "failed",
        "skipped",  # no caches
        "failed",
        "failed",
        "failed",
        "failed",
        "skipped",  # no weights
    ]


@pytest.mark.slow
async def test_a_step_that_hangs_is_ended_at_its_deadline_with_all_of_its_processes(tmp_path: Path) -> None:
    child = {"at": "load", "what": "child"}
    hang = {"what": "hang"}
    began = time.monotonic()
    outcomes, verdict = await triage(tmp_path, sick(tmp_path, child, hang), deadline=3.0)
    assert verdict.layer == "runtime or host"
    tried = [outcome for outcome in outcomes if outcome.state == "failed"]
    assert [outcome.step.name for outcome in tried][-1] == "direct"
    # On a machine that is busy the deadline may be over before the hang begins.
    assert {outcome.signature for outcome in tried} <= {"hung_warming", "hung_loading"}
    assert time.monotonic() - began < 60
    assert leftovers.find(leftovers.RUN, str(tmp_path)) == []


@pytest.mark.slow
async def test_black_frames_are_a_failure_with_and_without_the_worker(tmp_path: Path) -> None:
    black = {"at": "decode", "what": "black", "warm_up": True}
    outcomes, _ = await triage(tmp_path, sick(tmp_path, black))
    tried = [outcome for outcome in outcomes if outcome.state == "failed"]
    assert len(tried) == 5
    assert {outcome.signature for outcome in tried} == {"frames_rejected"}


@pytest.mark.slow
async def test_a_fault_that_comes_and_goes_is_found_by_repeating(tmp_path: Path) -> None:
    # Six starts of ten fail: a single pass would blame whatever was taken away last.
    wanted = sick(tmp_path, {"when": THROUGH_THE_WORKER, "what": "exit", "probability": 0.6})
    scripted = json.loads((tmp_path / "script.json").read_text()) | {"seed": 3}
    (tmp_path / "script.json").write_text(json.dumps(scripted))
    outcomes = await follow(steps_of(tmp_path, wanted), Path(sys.executable), tmp_path, repeat=8)
    assert judge(outcomes).layer == "direct"


def test_steps_that_change_nothing_for_the_profile_are_skipped_and_say_so(tmp_path: Path) -> None:
    plain = sick(
        tmp_path,
        compile="off",
        quantization="none",
        executor="in_process",
        devices={"count": 1},
        parallel={},
        accept_risk={},
    )
    skipped = {step.name: step.skipped for step in steps_of(tmp_path, plain) if step.skipped}
    assert skipped == {
        "caches": f"{tmp_path}/var-cache/omni-0.30-cu130/nvidia-h200-sm90/sample/group-0 holds no caches",
        "compile": "the profile compiles nothing",
        "quantization": "the profile quantises nothing",
        "processes": "the profile runs in one process on one device",
        "weights": "the fault backend has no weights",
    }


def test_each_step_keeps_what_the_ones_before_it_took_away(tmp_path: Path) -> None:
    steps = {step.name: step.launch for step in steps_of(tmp_path, sick(tmp_path))}
    keys = ("compile", "quantization", "executor", "devices")
    seen = {name: tuple(launch.options[key] for key in keys) for name, launch in steps.items() if launch}
    assert seen == {
        "configured": ("regional", "fp8", "multiprocess", 2),
        "compile": ("off", "fp8", "multiprocess", 2),
        "quantization": ("off", None, "multiprocess", 2),
        "processes": ("off", None, "in_process", 1),
        "direct": ("off", None, "in_process", 1),
        "weights": ("off", None, "in_process", 1),
    }
    caches = [launch.environment["TRITON_CACHE_DIR"] for launch in steps.values() if launch]
    assert len(set(caches)) == 5, "every step but the last has caches of its own"


def test_weights_that_do_not_fit_unquantised_are_streamed(tmp_path: Path) -> None:
    # 40 GiB hold A14B in fp8, and not in bf16.
    wanted = profile(quantization="fp8", admits={"num_frames": 17}, defaults={"num_frames": 17})
    facts = host(cards=(card(memory=45 * GIB),), run_directory=tmp_path, cache_directory=tmp_path)
    steps = {step.name: step for step in plan(small_job(wanted), facts, tmp_path / "fresh")}
    assert steps["quantization"].changed == ("offload: none -> layerwise", "quantization: fp8 -> none")


@pytest.mark.parametrize("name", profile_names(PROJECT / "configs" / "profiles"))
def test_every_shipped_profile_has_a_route_with_a_small_job_of_all_experts(name: str) -> None:
    wanted = load_profile(name, PROJECT / "configs" / "profiles")
    small = small_job(wanted)
    count = wanted.devices.count
    capability = (wanted.host.compute_capabilities or ("9.0",))[0]
    cards = tuple(card(index, capability, 200 * GIB) for index in range(count))
    steps = plan(small, host(cards=cards), Path("/nowhere"))
    assert [step.name for step in steps] == [
        "configured",
        "caches",
        "compile",
        "quantization",
        "processes",
        "direct",
        "weights",
    ]
    width, height = small.warm_up_size
    assert width * height <= 256 * 256
    assert (small.warm_up_frames, small.experts) == (9, wanted.experts)
    direct = steps[-2].launch
    assert direct is not None
    assert (direct.options["compile"], direct.options["quantization"]) == ("off", None)


@pytest.mark.slow
async def test_the_report_names_versions_launch_differences_and_the_logs_end_and_hides_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "the-token-that-nobody-shall-see")
    spoken = {"text": f"token the-token-that-nobody-shall-see\nprompt='a secret castle'\n{BROKEN}"}
    wanted = sick(tmp_path, spoken | {"when": LAYERS["compile"]})
    outcomes, verdict = await triage(tmp_path, wanted)
    text = report.markdown(wanted, outcomes, verdict, {"torch": "2.13.0"})
    assert "- torch 2.13.0" in text
    assert "compile: regional -> off" in text
    assert "TORCHDYNAMO_DISABLE: - -> 1" in text
    assert BROKEN in text
    assert "| configured | - | failed |" in text
    assert "that-nobody-shall-see" not in text
    assert "secret castle" not in text
    assert json.loads(json.dumps(report.record(wanted, outcomes, verdict)))["layer"] == "compile"


def test_a_script_imports_nothing_of_framekeeper_and_holds_the_launch(tmp_path: Path) -> None:
    wanted = sick(tmp_path, backend="vllm_omni", model="models/A14B")
    launch = steps_of(tmp_path, wanted)[0].launch
    assert launch is not None
    text = script.text(launch, 'It says """ and \\ too.', empty_caches=True)
    compile(text, "reproduce.py", "exec")
    assert "framekeeper." not in text
    assert "import framekeeper" not in text
    assert "'ulysses_degree': 2" in text
    assert "'quantization_config': 'fp8'" in text
    assert "'TRITON_CACHE_DIR': 'triton'" in text
    assert str(launch.cache_directory) not in text
    assert str(launch.cache_directory) in script.text(launch, "", empty_caches=False)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, "the backend fault has no library"),
        (
            {"runtime": "torch-2.4.1-cu124", "backend": "vllm_omni", "quantization": "none"},
            "only with Framekeeper's port",
        ),
    ],
)
def test_where_no_script_is_possible_the_reason_is_said(
    changes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    plain = {"compile": "off", "executor": "in_process", "devices": {"count": 1}, "parallel": {}}
    wanted = sick(tmp_path, **(plain | {"accept_risk": {}} | changes))
    launch = steps_of(tmp_path, wanted)[0].launch
    assert launch is not None
    with pytest.raises(script.NoScript, match=reason):
        script.text(launch, "", empty_caches=True)
