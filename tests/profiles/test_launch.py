"""A launch is a pure function of profile, facts, group and rung; nothing inherited gets through."""

from __future__ import annotations

from pathlib import Path

import pytest

from framekeeper.profiles.environment import DECIDED, PLACEBOS, examine_environment
from framekeeper.profiles.faults import ProfileError
from framekeeper.profiles.launch import PASSED, resolve
from framekeeper.profiles.schema import Profile
from profile_samples import GIB, card, host, profile

HOSTILE = dict.fromkeys((*PLACEBOS, *DECIDED, "LD_PRELOAD", "PYTHONPATH", "HTTPS_PROXY"), "inherited")


def cpu(**changes: object) -> Profile:
    return profile(**{"devices": {"kind": "cpu"}, "runtime": "omni-0.30-cpu", **changes})


def test_same_input_gives_the_same_launch() -> None:
    assert resolve(profile(), host()) == resolve(profile(), host())


def test_inherited_variables_do_not_reach_the_worker() -> None:
    passed = {"PATH": "/opt/bin", "LANG": "de_DE.UTF-8"}
    clean = resolve(profile(), host(inherited=passed))
    hostile = resolve(profile(), host(inherited={**HOSTILE, **passed}))
    assert hostile.environment == clean.environment
    assert "inherited" not in hostile.environment.values()
    assert clean.environment["PATH"] == "/opt/bin"


def test_worker_is_offline_and_reports_to_nobody() -> None:
    environment = resolve(profile(), host()).environment
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "VLLM_NO_USAGE_STATS", "DO_NOT_TRACK"):
        assert environment[name] == "1"


@pytest.mark.parametrize(
    ("runtime", "variable"),
    [("omni-0.30-cu130", "PYTORCH_ALLOC_CONF"), ("torch-2.4.1-cu124", "PYTORCH_CUDA_ALLOC_CONF")],
)
def test_allocator_is_set_by_the_variable_that_this_torch_reads(runtime: str, variable: str) -> None:
    environment = resolve(profile(runtime=runtime, allocator={"max_split_size_mb": 256}), host()).environment
    assert environment[variable] == "expandable_segments:False,max_split_size_mb:256"
    assert sum("ALLOC_CONF" in name for name in environment) == 1


def test_compile_off_is_off_by_variable_and_argument() -> None:
    off = resolve(profile(), host())
    assert (off.environment["TORCHDYNAMO_DISABLE"], off.environment["TORCH_COMPILE_DISABLE"]) == ("1", "1")
    assert off.options["compile"] == "off"
    on = resolve(profile(compile="regional"), host())
    assert not {"TORCHDYNAMO_DISABLE", "TORCH_COMPILE_DISABLE"} & on.environment.keys()


def test_each_group_sees_its_own_devices_and_directories() -> None:
    facts = host(cards=tuple(card(index) for index in range(4)))
    pair = profile(devices={"count": 2}, parallel={"cfg": 2}, executor="multiprocess")
    first, second = (resolve(pair, facts, group=group, groups=2) for group in (0, 1))
    assert first.environment["CUDA_VISIBLE_DEVICES"] == "GPU-0000,GPU-0001"
    assert second.devices == ("GPU-0002", "GPU-0003")
    assert not set(first.directories) & set(second.directories)
    shared = {
        name
        for name, value in first.environment.items()
        if "/" in value and value == second.environment[name]
    }
    assert shared == {"PATH", "HF_HOME"}


def test_cpu_devices_count_as_devices() -> None:
    two = cpu(devices={"kind": "cpu", "count": 2}, parallel={"cfg": 2}, executor="multiprocess")
    launch = resolve(two, host(cpu_count=8), group=1, groups=2)
    assert launch.devices == ("cpu-2", "cpu-3")
    assert launch.environment["FRAMEKEEPER_CPU_DEVICES"] == "2"
    assert launch.environment["OMP_NUM_THREADS"] == "2"
    assert launch.environment["CUDA_VISIBLE_DEVICES"] == ""


def test_caches_differ_by_runtime_card_profile_and_group() -> None:
    facts = host(cards=(card(0), card(1)))
    launches = [
        resolve(profile(), facts),
        resolve(profile(), facts, group=1, groups=2),
        resolve(profile(name="other"), facts),
        resolve(profile(runtime="torch-2.4.1-cu124"), facts),
        resolve(profile(), host(cards=(card(capability="10.0"),))),
        resolve(cpu(), facts),
    ]
    assert len({launch.environment["TORCHINDUCTOR_CACHE_DIR"] for launch in launches}) == len(launches)


def test_group_without_devices_is_refused() -> None:
    with pytest.raises(ProfileError, match=r"group 1 needs devices .* and there are 1"):
        resolve(profile(), host(), group=1, groups=2)


def test_host_that_breaks_a_rule_is_refused() -> None:
    with pytest.raises(ProfileError, match="shape-over-memory"):
        resolve(profile(), host(cards=(card(memory=24 * GIB),)))


def test_key_that_does_nothing_is_a_warning_of_the_launch() -> None:
    (warning,) = resolve(profile(offload_prefetch="sync"), host()).warnings
    assert "prefetch-without-layers" in warning
    assert resolve(profile(), host()).warnings == ()


def test_rung_changes_what_it_says_and_what_was_changed_before_it() -> None:
    laddered = profile(
        compile="regional",
        fallbacks=[
            {"name": "eager", "change": {"compile": "off"}},
            {"name": "smaller", "change": {"admits": {"num_frames": 49}, "defaults": {"num_frames": 49}}},
        ],
    )
    eager, smaller = (resolve(laddered, host(), rung=rung) for rung in (1, 2))
    assert (eager.rung_name, eager.options["compile"], eager.profile.admits.num_frames) == (
        "eager",
        "off",
        81,
    )
    assert (smaller.options["compile"], smaller.profile.admits.num_frames) == ("off", 49)
    with pytest.raises(IndexError, match="has 2 fallbacks"):
        resolve(laddered, host(), rung=3)


def test_model_is_a_directory_or_a_revision_in_the_hub_cache() -> None:
    facts = host(base_directory=Path("/srv/x"), cache_directory=Path("/srv/cache"))
    assert resolve(profile(), facts).model == "/srv/x/var/models/Wan2.2-T2V-A14B-Diffusers"
    assert resolve(profile(model="/models/a14b"), facts).model == "/models/a14b"
    launch = resolve(profile(model=f"Wan-AI/Wan2.2-T2V-A14B-Diffusers@{'a' * 40}"), facts)
    repository = "models--Wan-AI--Wan2.2-T2V-A14B-Diffusers"
    assert launch.model == f"/srv/cache/huggingface/hub/{repository}/snapshots/{'a' * 40}"
    assert launch.environment["HF_HOME"] == "/srv/cache/huggingface"


def test_sockets_fit_below_the_temporary_directory() -> None:
    deep = Path("/a/very/long/path") / ("x" * 150)
    launch = resolve(profile(), host(run_directory=deep))
    assert len(launch.environment["TMPDIR"]) < 40


def test_options_have_exactly_the_keys_of_the_contract() -> None:
    keys = """device devices executor dtype attention compile offload offload_pin_memory offload_prefetch
    quantization attention_quantization parallel cache vae boundary_ratio flow_shift"""
    assert set(resolve(profile(), host()).options) == set(keys.split())


def test_placebo_variables_are_named_with_the_key_that_does_it() -> None:
    launch = resolve(profile(), host())
    found = {each.name: each for each in examine_environment(dict.fromkeys(PLACEBOS, "1"), launch)}
    assert set(found) == set(PLACEBOS)
    assert all(each.kind == "placebo" for each in found.values())
    assert "compile: off" in str(found["TORCH_COMPILE"])


def test_variables_that_contradict_the_profile_are_named() -> None:
    launch = resolve(profile(compile="regional"), host())
    inherited = {
        "TORCH_COMPILE_DISABLE": "0",
        "CUDA_VISIBLE_DEVICES": "1",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True,max_split_size_mb:128",
        "HF_HUB_OFFLINE": "1",
        "NCCL_P2P_DISABLE": "1",
        "EDITOR": "vi",
        **dict.fromkeys(PASSED, "x"),
    }
    found = {each.name: each.kind for each in examine_environment(inherited, launch)}
    assert found == {
        "TORCH_COMPILE_DISABLE": "dropped",
        "CUDA_VISIBLE_DEVICES": "overridden",
        "PYTORCH_CUDA_ALLOC_CONF": "dropped",
        "NCCL_P2P_DISABLE": "dropped",
    }
