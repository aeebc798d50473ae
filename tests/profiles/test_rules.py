"""Every rule from both sides: what it refuses, and the nearest thing it leaves alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from framekeeper.profiles import rules
from framekeeper.profiles.facts import HostFacts
from profile_samples import GIB, card, host, profile

T241 = "torch-2.4.1-cu124"
CPU: dict[str, Any] = {"devices": {"kind": "cpu"}, "runtime": "omni-0.30-cpu"}
TI2V: dict[str, Any] = {
    "serves": "wan2.2-ti2v-5b",
    "model": "ti2v-5b",
    "defaults": {"boundary_ratio": None, "guidance_scale_2": None, "size": "832x480"},
}
I2V: dict[str, Any] = {"serves": "wan2.2-i2v-a14b", "model": "Wan2.2-I2V-A14B-Diffusers"}
TI2V_TINY: dict[str, Any] = {"serves": "wan2.2-ti2v-tiny", "model": "wan2.2-ti2v-tiny"}
ADMITS_A_PICTURE: dict[str, Any] = {"admits": {"image": "optional"}}


@dataclass(frozen=True)
class Case:
    """`wrong` breaks the rule under `facts` at `key`; `right` (under `calm`) does not."""

    rule: str
    key: str
    wrong: dict[str, Any]
    right: dict[str, Any] = field(default_factory=dict)
    facts: HostFacts = field(default_factory=HostFacts)
    calm: HostFacts | None = None


def expandable(**more: Any) -> dict[str, Any]:
    return {"allocator": {"expandable_segments": True, **more}}


def parallel(count: int, **sizes: int) -> dict[str, Any]:
    return {"devices": {"count": count}, "parallel": sizes, "executor": "multiprocess"}


def blackwell() -> HostFacts:
    return host(cards=(card(capability="12.0"),))


CASES = [
    Case(
        "runtime-unknown", "runtime", {"runtime": "omni-0.31"}, {"runtime": "omni-0.31", "backend": "fault"}
    ),
    Case("runtime-of-device", "devices.kind", {"runtime": "omni-0.30-cpu"}, CPU),
    Case("runtime-of-device", "devices.kind", {"devices": {"kind": "cpu"}}, {**CPU, "runtime": T241}),
    Case("executor-of-runtime", "executor", {"runtime": T241, "executor": "multiprocess"}, {"runtime": T241}),
    Case("executor-of-backend", "backend", {"backend": "diffusers", "executor": "multiprocess"}),
    Case("cache-of-backend", "cache", {"cache": "teacache"}, {"cache": "cache_dit"}),
    Case("cache-of-backend", "cache", {"cache": "cache_dit", "backend": "diffusers"}),
    Case("cache-of-runtime", "cache", {"cache": "cache_dit", "runtime": T241}, {"cache": "cache_dit"}),
    Case(
        "versions-differ",
        "runtime",
        {},
        facts=host(installed={"vllm": "0.29.0", "torch": "2.13.0"}),
        calm=host(installed={"vllm": "0.30.0", "torch": "2.13.0+cu130", "vllm-omni": "0.30.0"}),
    ),
    Case("driver-too-old", "runtime", {}, facts=host(driver="570.86.15"), calm=host(driver="580.65.06")),
    Case(
        "driver-too-old", "host.driver", {"host": {"driver": "590"}}, facts=host(), calm=host(driver="595.1")
    ),
    Case("runtime-without-code-for-card", "runtime", {"runtime": T241}, facts=blackwell(), calm=host()),
    Case("runtime-without-code-for-card", "runtime", {"host": {"compute_capabilities": ["7.0"]}}),
    Case(
        "card-not-meant",
        "host.compute_capabilities",
        {"host": {"compute_capabilities": [8.9]}},
        {"host": {"compute_capabilities": [8.9, 9.0]}},
        facts=host(),
    ),
    Case(
        "attention-fp8-kernel",
        "attention_quantization",
        {"attention_quantization": "fp8", "attention": "torch_sdpa"},
        {"attention_quantization": "fp8"},
    ),
    Case(
        "attention-fp8-kernel",
        "attention_quantization",
        {"attention_quantization": "fp8"},
        {"attention_quantization": "fp8"},
        facts=host(cards=(card(capability="8.9"),)),
        calm=host(),
    ),
    Case(
        "shape-over-memory", "admits.size", {}, {"offload": "layerwise"}, host(cards=(card(memory=24 * GIB),))
    ),
    Case(
        "shape-over-memory", "admits.size", {"host": {"gpu_memory": "48GB"}}, {"host": {"gpu_memory": "80GB"}}
    ),
    Case(
        "flash-attention-of-card",
        "attention",
        {"attention": "flash_attn", **CPU},
        {"attention": "flash_attn"},
    ),
    Case(
        "flash-attention-of-card",
        "attention",
        {"attention": "flash_attn", "host": {"compute_capabilities": [7.5]}},
        {"attention": "torch_sdpa", "host": {"compute_capabilities": [7.5]}},
    ),
    Case(
        "attention-of-runtime", "attention", {"attention": "flash_attn", "runtime": T241}, {"runtime": T241}
    ),
    Case(
        "expandable-segments-with-split-size",
        "allocator.max_split_size_mb",
        expandable(max_split_size_mb=128),
        {"allocator": {"max_split_size_mb": 128}},
    ),
    Case(
        "expandable-segments-with-gc-threshold",
        "allocator.garbage_collection_threshold",
        expandable(garbage_collection_threshold=0.8),
        {"allocator": {"garbage_collection_threshold": 0.8}},
    ),
    Case(
        "expandable-segments-on-wsl",
        "allocator.expandable_segments",
        expandable(),
        expandable(),
        facts=host(wsl=True),
        calm=host(),
    ),
    Case(
        "expandable-segments-with-offload",
        "allocator.expandable_segments",
        {**expandable(), "offload": "layerwise"},
        expandable(),
    ),
    Case(
        "expandable-segments-with-ipc",
        "allocator.expandable_segments",
        {**expandable(), "executor": "multiprocess"},
        expandable(),
    ),
    Case(
        "split-size-too-small",
        "allocator.max_split_size_mb",
        {"allocator": {"max_split_size_mb": 20}},
        {"allocator": {"max_split_size_mb": 21}},
    ),
    Case(
        "allocator-key-unknown",
        "allocator.max_non_split_rounding_mb",
        {"runtime": T241, "allocator": {"max_non_split_rounding_mb": 64}},
        {"allocator": {"max_non_split_rounding_mb": 64}},
    ),
    Case(
        "allocator-async-ignores",
        "allocator.max_split_size_mb",
        {"allocator": {"backend": "cudaMallocAsync", "max_split_size_mb": 64}},
        {"allocator": {"backend": "cudaMallocAsync"}},
    ),
    Case(
        "allocator-on-cpu",
        "allocator.max_split_size_mb",
        {**CPU, "allocator": {"max_split_size_mb": 64}},
        CPU,
    ),
    Case(
        "offload-with-compile",
        "compile",
        {"offload": "layerwise", "compile": "regional"},
        {"offload": "none", "compile": "regional"},
    ),
    Case(
        "offload-with-full-compile", "compile", {"offload": "model", "compile": "full"}, {"compile": "full"}
    ),
    Case(
        "offload-with-quantization",
        "quantization",
        {"offload": "layerwise", "quantization": "fp8", "runtime": T241},
        {"offload": "layerwise", "quantization": "fp8"},
    ),
    Case(
        "offload-with-sequence-parallel",
        "parallel.ulysses",
        {"offload": "layerwise", "runtime": T241, **parallel(2, ulysses=2)},
        {"offload": "layerwise", **parallel(2, ulysses=2)},
    ),
    Case(
        "offload-with-hsdp", "parallel.hsdp", {"offload": "model", **parallel(2, hsdp=2)}, parallel(2, hsdp=2)
    ),
    Case(
        "offload-with-cache",
        "cache",
        {"offload": "model", "cache": "cache_dit"},
        {"offload": "layerwise", "cache": "cache_dit"},
    ),
    Case(
        "offload-pinned-on-wsl",
        "offload_pin_memory",
        {"offload": "layerwise"},
        {"offload": "layerwise", "offload_pin_memory": False},
        facts=host(wsl=True),
    ),
    Case(
        "offload-pinned-over-limit",
        "offload_pin_memory",
        {"offload": "layerwise"},
        {"offload": "layerwise", "offload_pin_memory": False},
        facts=host(locked_bytes=8 * GIB),
    ),
    Case(
        "offload-pinned-on-cpu",
        "offload_pin_memory",
        {**CPU, "offload": "layerwise"},
        {**CPU, "offload": "layerwise", "offload_pin_memory": False},
    ),
    Case(
        "prefetch-without-layers",
        "offload_prefetch",
        {"offload_prefetch": "sync"},
        {"offload_prefetch": "sync", "offload": "layerwise"},
    ),
    Case(
        "full-compile-with-hsdp",
        "compile",
        {"compile": "full", **parallel(2, hsdp=2)},
        {"compile": "regional", **parallel(2, hsdp=2)},
    ),
    Case(
        "full-compile-with-sequence-parallel",
        "compile",
        {"compile": "full", **parallel(2, ring=2)},
        {"compile": "full", **parallel(2, cfg=2)},
    ),
    Case(
        "compile-half-of-the-experts",
        "compile",
        {"compile": "regional", "runtime": T241},
        {"compile": "regional"},
    ),
    Case(
        "compile-of-backend",
        "compile",
        {"compile": "regional", "backend": "diffusers"},
        {"backend": "diffusers"},
    ),
    Case(
        "quantization-with-compile",
        "compile",
        {"quantization": "fp8", "compile": "regional"},
        {"quantization": "fp8"},
    ),
    Case(
        "quantization-of-runtime", "quantization", {"quantization": "fp8", "runtime": T241}, {"runtime": T241}
    ),
    Case(
        "quantization-of-runtime", "quantization", {"quantization": "int8", **CPU}, {"quantization": "int8"}
    ),
    Case(
        "quantization-on-desktop-blackwell",
        "quantization",
        {"quantization": "fp8"},
        {"quantization": "fp8"},
        facts=blackwell(),
        calm=host(cards=(card(capability="10.0"),)),
    ),
    Case(
        "quantization-below-card",
        "quantization",
        {"quantization": "int8", "host": {"compute_capabilities": [7.5]}},
        {"quantization": "fp8", "host": {"compute_capabilities": [7.5]}},
    ),
    Case(
        "block-fp8-on-ada",
        "quantization",
        {"quantization": "fp8", "host": {"compute_capabilities": [8.9]}},
        {"quantization": "fp8", "host": {"compute_capabilities": [9.0]}},
    ),
    Case("quantization-dtype", "dtype", {"quantization": "fp8", "dtype": "float32"}, {"dtype": "float32"}),
    Case("parallel-product", "devices.count", parallel(4, cfg=2), parallel(4, cfg=2, ulysses=2)),
    Case("parallel-hsdp-shape", "parallel.hsdp", parallel(2, hsdp=2, tensor=2), parallel(2, hsdp=2, cfg=2)),
    Case("parallel-heads", "parallel.ulysses", parallel(3, ulysses=3), parallel(5, ulysses=5)),
    Case(
        "parallel-heads",
        "parallel.tensor",
        {**TI2V, **parallel(5, tensor=5)},
        {**TI2V, **parallel(6, tensor=6)},
    ),
    Case(
        "parallel-of-runtime",
        "parallel.pipeline",
        {"runtime": T241, **parallel(2, pipeline=2)},
        parallel(2, pipeline=2),
    ),
    Case("parallel-vae", "parallel.vae", parallel(2, cfg=2, vae=4), parallel(2, cfg=2, vae=2)),
    Case(
        "parallel-vae-without-tiles",
        "vae.tiling",
        {**parallel(2, cfg=2, vae=2), "vae": {"tiling": False}},
        {**parallel(2, cfg=2), "vae": {"tiling": False}},
    ),
    Case(
        "parallel-cfg-without-guidance",
        "parallel.cfg",
        {**parallel(2, cfg=2), "defaults": {"guidance_scale": 1.0}},
        parallel(2, cfg=2),
    ),
    Case("devices-need-processes", "executor", {"devices": {"count": 2}}, parallel(2, cfg=2)),
    Case(
        "device-twice",
        "devices.uuids",
        {"devices": {"uuids": ["GPU-a", "GPU-a"]}},
        {"devices": {"uuids": ["GPU-a", "GPU-b"]}},
    ),
    Case(
        "devices-in-groups",
        "devices.uuids",
        {"devices": {"count": 2, "uuids": ["GPU-a", "GPU-b", "GPU-c"]}},
        {"devices": {"count": 2, "uuids": ["GPU-a", "GPU-b"]}},
    ),
    Case("memory-too-small", "host.memory", {"host": {"memory": "1024GiB"}}, facts=host()),
    Case("memory-too-small", "offload", {"offload": "layerwise"}, facts=host(memory_bytes=64 * GIB)),
    Case(
        "shm-too-small",
        "executor",
        {"executor": "multiprocess"},
        facts=host(shm_bytes=64 * 1024**2),
    ),
    Case("executor-with-host-ipc", "executor", {"executor": "multiprocess"}, facts=host(host_ipc=True)),
    Case("frames-4k-plus-1", "defaults.num_frames", {"defaults": {"num_frames": 80}}),
    Case("size-in-tokens", "admits.size", {"admits": {"size": "833x480"}}),
    Case("size-in-tokens", "defaults.size", {**TI2V, "defaults": {"size": "848x480"}}, TI2V),
    Case(
        "defaults-admitted",
        "defaults.size",
        {"defaults": {"size": "1280x720"}},
        {"defaults": {"size": "480x832"}},
    ),
    Case("boundary-missing", "defaults.boundary_ratio", {"defaults": {"boundary_ratio": None}}, TI2V),
    Case(
        "boundary-without-experts",
        "defaults.boundary_ratio",
        {**TI2V, "defaults": {"boundary_ratio": 0.9}},
        TI2V,
    ),
    Case(
        "second-guidance-missing", "defaults.guidance_scale_2", {"defaults": {"guidance_scale_2": None}}, TI2V
    ),
    Case("warm-up-of-both-experts", "warm_up.num_inference_steps", {"warm_up": {"num_inference_steps": 2}}),
    Case("warm-up-smaller-than-admitted", "warm_up", {"warm_up": {"num_frames": 1}}),
    Case("decode-without-tiles", "vae.tiling", {"vae": {"tiling": False}}),
    Case("picture-of-model", "admits.image", {"admits": {"image": "optional"}}, {**TI2V, **ADMITS_A_PICTURE}),
    Case("picture-of-model", "admits.image", I2V, {**I2V, "admits": {"image": "required"}}),
    Case(
        "picture-of-model",
        "admits.image",
        {**CPU, "serves": "mine", "model": "wan2.2-i2v-tiny"},
        {**CPU, "serves": "mine", "model": "wan2.2-ti2v-tiny"},
    ),
    Case(
        "picture-in-vllm-omni-0.14",
        "admits.image",
        {**TI2V, **ADMITS_A_PICTURE, "runtime": T241},
        {**TI2V, **ADMITS_A_PICTURE, "runtime": T241, "backend": "diffusers"},
    ),
    Case(
        "size-in-tokens",
        "defaults.size",
        {**CPU, **TI2V_TINY, "defaults": {"size": "80x64"}},
        {**CPU, "serves": "wan2.2-t2v-tiny", "model": "tiny", "defaults": {"size": "80x64"}},
    ),
    Case(
        "risk-not-acceptable",
        "accept_risk.no-such-rule",
        {"accept_risk": {"no-such-rule": "because I say so"}},
    ),
]


def findings(case: Case, changes: dict[str, Any], facts: HostFacts) -> list[rules.Finding]:
    return [found for rule, found in rules.check(profile(**changes), facts) if rule.id == case.rule]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.rule}-{case.key}")
def test_rule_refuses_what_breaks_and_leaves_its_neighbour_alone(case: Case) -> None:
    found = findings(case, case.wrong, case.facts)
    assert case.key in [each.key for each in found]
    for each in found:
        assert each.reason
        assert each.advice
    calm = case.calm or (case.facts if case.right else HostFacts())
    assert findings(case, case.right, calm) == []


def test_every_rule_has_a_case_and_public_evidence() -> None:
    tested = {case.rule for case in CASES}
    for rule in (*rules.RULES, rules.ACCEPTANCE):
        assert rule.id in tested, f"no test breaks {rule.id}"
        assert rule.evidence
        assert all(url.startswith("https://") for url in rule.evidence), rule.id
        assert rule.summary.endswith("."), rule.id


def test_rules_have_different_ids() -> None:
    assert len(rules.BY_ID) == len(rules.RULES)


def test_sample_profile_breaks_no_rule() -> None:
    assert rules.check(profile(), host()) == []


def test_first_seed_crash_is_refused_with_its_evidence() -> None:
    """`!handles_.at(i) INTERNAL ASSERT FAILED`: expandable segments under layerwise offload, or WSL2."""
    wrong = profile(offload="layerwise", allocator={"expandable_segments": True})
    found = {rule.id: rule for rule, _ in rules.check(wrong, host(wsl=True))}
    for rule in ("expandable-segments-with-offload", "expandable-segments-on-wsl"):
        assert "https://github.com/pytorch/pytorch/issues/166234" in found[rule].evidence


def test_second_seed_crash_is_refused_with_its_evidence() -> None:
    """`cutlass_scaled_mm … scaled_mm_entry.cu:203`: fp8 weights through the offloader before 0.30."""
    wrong = profile(offload="layerwise", quantization="fp8", runtime=T241)
    found = {rule.id: rule for rule, _ in rules.check(wrong, HostFacts())}
    assert (
        "https://github.com/vllm-project/vllm-omni/pull/5988" in found["offload-with-quantization"].evidence
    )


def test_offload_with_compile_is_accepted_only_where_it_was_measured() -> None:
    risk = {"offload-with-compile": "ran on an H200 with 0.30.0 without a fault"}
    pair = {"offload": "layerwise", "compile": "regional", "accept_risk": risk}
    assert rules.check(profile(**pair), host()) == []
    elsewhere = [rule.id for rule, _ in rules.check(profile(**pair, runtime=T241), host())]
    assert {"offload-with-compile", "risk-not-acceptable"} <= set(elsewhere)


def test_full_compile_with_offload_cannot_be_accepted() -> None:
    risk = {"offload-with-full-compile": "it will surely work here"}
    wrong = profile(offload="layerwise", compile="full", accept_risk=risk)
    assert {"offload-with-full-compile", "risk-not-acceptable"} <= {
        r.id for r, _ in rules.check(wrong, host())
    }


@pytest.mark.parametrize(
    ("ratio", "advice"), [(0.875, "warm_up.num_inference_steps: 3"), (1e-320, "boundary_ratio")]
)
def test_warm_up_that_stays_in_the_first_expert_is_told_what_to_change(ratio: float, advice: str) -> None:
    wrong = profile(defaults={"boundary_ratio": ratio}, warm_up={"num_inference_steps": 2})
    (found,) = [f for rule, f in rules.check(wrong, HostFacts()) if rule.id == "warm-up-of-both-experts"]
    assert advice in found.advice
    if ratio > 0.1:
        steps = {"num_inference_steps": 3}
        assert rules.check(profile(defaults={"boundary_ratio": ratio}, warm_up=steps), HostFacts()) == []
