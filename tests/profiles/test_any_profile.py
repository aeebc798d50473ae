"""Whatever a profile says: it yields a launch that contradicts nothing, or a refusal that names its keys."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from framekeeper.profiles.commands import flatten
from framekeeper.profiles.facts import HostFacts
from framekeeper.profiles.fallbacks import merge
from framekeeper.profiles.faults import ProfileError
from framekeeper.profiles.launch import Launch, resolve
from framekeeper.profiles.rules import BY_ID
from framekeeper.profiles.schema import Profile
from profile_samples import A14B, GIB, card, host

MAYBE = st.booleans()
DEGREE = st.sampled_from([1, 1, 1, 2, 3, 4, 5, 8])
SIZE = st.sampled_from(["64x64", "832x480", "480x832", "1280x720", "1280x704", "833x480", "4096x4096"])
FRAMES = st.sampled_from([1, 9, 49, 80, 81, 121, 501])
STEPS = st.integers(1, 100)
SECONDS = st.floats(1, 86_400)
NOTHING = st.none()

KEYS: dict[str, st.SearchStrategy[Any]] = {
    "serves": st.sampled_from(["wan2.2-t2v-a14b", "wan2.2-i2v-a14b", "wan2.2-ti2v-5b", "wan2.2-t2v-tiny"]),
    "runtime": st.sampled_from(["omni-0.30-cu130", "omni-0.30-cpu", "torch-2.4.1-cu124", "unheard-of"]),
    "backend": st.sampled_from(["vllm_omni", "diffusers", "fault"]),
    "model": st.sampled_from(["var/models/x", "/models/a14b", f"a/b@{'0' * 40}"]),
    "devices.count": st.integers(1, 8),
    "devices.kind": st.sampled_from(["cpu", "cuda"]),
    "devices.uuids": st.one_of(
        st.just("auto"),
        st.lists(st.sampled_from(["GPU-0000", "GPU-0001", "GPU-0002"]), min_size=1, max_size=4),
    ),
    **{f"parallel.{key}": DEGREE for key in ("tensor", "ulysses", "ring", "pipeline", "vae", "hsdp")},
    "parallel.cfg": st.integers(1, 2),
    "dtype": st.sampled_from(["bfloat16", "float16", "float32"]),
    "attention": st.sampled_from(["auto", "flash_attn", "torch_sdpa", "sage_attn"]),
    "offload": st.sampled_from(["none", "model", "layerwise"]),
    "offload_pin_memory": MAYBE,
    "offload_prefetch": st.sampled_from(["async", "sync"]),
    "executor": st.sampled_from(["in_process", "multiprocess"]),
    "compile": st.sampled_from(["off", "regional", "full"]),
    "quantization": st.sampled_from(["none", "fp8", "int8"]),
    "attention_quantization": st.sampled_from(["none", "fp8"]),
    "cache": st.sampled_from(["none", "teacache", "cache_dit"]),
    "vae.tiling": MAYBE,
    "vae.slicing": MAYBE,
    "vae.fast_path": st.sampled_from(["off", "lossless", "channels_last"]),
    "allocator.expandable_segments": MAYBE,
    "allocator.max_split_size_mb": st.one_of(NOTHING, st.integers(1, 512)),
    "allocator.garbage_collection_threshold": st.one_of(NOTHING, st.floats(0.1, 0.9)),
    "allocator.roundup_power2_divisions": st.one_of(NOTHING, st.integers(1, 64)),
    "allocator.max_non_split_rounding_mb": st.one_of(NOTHING, st.integers(1, 512)),
    "allocator.backend": st.sampled_from(["native", "cudaMallocAsync"]),
    "defaults.size": SIZE,
    "defaults.num_frames": FRAMES,
    "defaults.fps": st.integers(1, 120),
    "defaults.num_inference_steps": STEPS,
    "defaults.guidance_scale": st.floats(0, 30),
    "defaults.guidance_scale_2": st.one_of(NOTHING, st.floats(0, 30)),
    "defaults.boundary_ratio": st.one_of(NOTHING, st.floats(0, 1)),
    "defaults.flow_shift": st.one_of(NOTHING, st.floats(0.5, 20)),
    "defaults.negative_prompt": st.one_of(NOTHING, st.text(max_size=9)),
    "admits.size": SIZE,
    "admits.num_frames": FRAMES,
    "admits.num_inference_steps": STEPS,
    "admits.image": st.sampled_from(["none", "optional", "required"]),
    "warm_up.size": st.one_of(NOTHING, SIZE),
    "warm_up.num_frames": st.one_of(NOTHING, FRAMES),
    "warm_up.num_inference_steps": st.integers(1, 50),
    "warm_up.deadline_seconds": SECONDS,
    **{f"deadlines.{key}_seconds": SECONDS for key in ("load", "step", "decode", "job")},
    "host.memory": st.sampled_from([None, "16GiB", "2048GiB"]),
    "host.shm": st.sampled_from([None, "1GiB", "256GiB"]),
    "host.gpu_memory": st.sampled_from([None, "24GiB", "80GB"]),
    "host.compute_capabilities": st.lists(st.sampled_from([7.0, 8.0, 8.9, 9.0, 12.0]), max_size=2),
    "host.driver": st.sampled_from([None, "525", "999"]),
    "fallbacks": st.sampled_from(
        [
            [],
            [{"name": "eager", "change": {"compile": "off"}}],
            [{"name": "x", "change": {"offload": "model"}}],
        ]
    ),
    "accept_risk": st.dictionaries(
        st.sampled_from([*BY_ID, "no-rule"]), st.just("for the sake of the test"), max_size=2
    ),
    "verified": st.sampled_from([False, "cpu", "memory", "hardware"]),
}
HOSTS = st.sampled_from(
    [
        host(),
        host(cards=tuple(card(index) for index in range(8))),
        host(cards=(card(capability="12.0", memory=32 * GIB),)),
        host(cards=(card(memory=24 * GIB, capability="8.9"),), wsl=True, memory_bytes=64 * GIB),
        host(cards=(), driver=None, shm_bytes=64 * 1024**2, host_ipc=True),
    ]
)


def nested(flat: dict[str, Any]) -> dict[str, Any]:
    data: dict[str, Any] = {}
    for key, value in flat.items():
        section, _, inner = key.partition(".")
        data = merge(data, {section: {inner: value} if inner else value})
    return data


@st.composite
def profiles(draw: st.DrawFn) -> Profile:
    # A few changes of a legal profile, since all keys at once would be refused nearly always; and sometimes
    # one whole section, whose keys clash with each other.
    chosen = draw(st.lists(st.sampled_from(sorted(KEYS)), max_size=5, unique=True))
    section = draw(st.sampled_from([None, None, "allocator.", "parallel.", "devices.", "defaults."]))
    chosen += [key for key in KEYS if section and key.startswith(section) and key not in chosen]
    return Profile.model_validate(merge(A14B, nested({key: draw(KEYS[key]) for key in chosen})))


def contradictions(launch: Launch, facts: HostFacts) -> list[str]:
    """What must not be in any launch, written down without the rules."""
    options, environment = launch.options, launch.environment
    allocator = environment.get("PYTORCH_ALLOC_CONF", "") + environment.get("PYTORCH_CUDA_ALLOC_CONF", "")
    expandable = "expandable_segments:True" in allocator
    degrees = [options["parallel"][key] for key in ("tensor", "ulysses", "ring", "pipeline", "cfg")]
    product = 1
    for degree in degrees:
        product *= degree
    old = launch.runtime == "torch-2.4.1-cu124"
    accepted = launch.profile.accept_risk
    wrong = {
        "compile and offload": options["compile"] != "off"
        and options["offload"] != "none"
        and "offload-with-compile" not in accepted,
        "full compile and offload": options["compile"] == "full" and options["offload"] != "none",
        "full compile and parallel": options["compile"] == "full"
        and options["parallel"]["ulysses"] * options["parallel"]["ring"] > 1,
        "allocator pair": expandable and ("max_split" in allocator or "garbage" in allocator),
        "expandable under offload": expandable and options["offload"] != "none",
        "expandable under WSL": expandable and facts.wsl,
        "pinned under WSL": facts.wsl and options["offload"] != "none" and options["offload_pin_memory"],
        "quantised without kernels": options["quantization"] and (old or options["device"] == "cpu"),
        "attention in fp8 without kernels": options["attention_quantization"] == "fp8"
        and launch.runtime != "omni-0.30-cu130",
        "devices": product != len(launch.devices) and options["parallel"]["hsdp"] != len(launch.devices),
        "device twice": len(set(launch.devices)) != len(launch.devices),
        "picture for a model of texts": launch.profile.serves == "wan2.2-t2v-tiny"
        and launch.backend != "fault"
        and launch.profile.admits.image != "none",
        "frames": launch.profile.admits.num_frames % 4 != 1,
        "eager that compiles": options["compile"] == "off" and environment.get("TORCHDYNAMO_DISABLE") != "1",
        "dynamo off while compiling": options["compile"] != "off" and "TORCHDYNAMO_DISABLE" in environment,
    }
    return [name for name, broken in wrong.items() if broken]


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(profile=profiles(), facts=HOSTS)
def test_launch_contradicts_nothing_or_refusal_names_keys(profile: Profile, facts: HostFacts) -> None:
    try:
        launch = resolve(profile, facts)
    except ProfileError as error:
        known = flatten(profile.model_dump()) | profile.model_dump()
        for fault in error.faults:
            assert fault.key in known or fault.key.startswith("accept_risk."), fault
            assert fault.reason
            assert fault.advice
    else:
        assert contradictions(launch, facts) == []


def test_strategy_covers_every_key_of_the_schema() -> None:
    whole = Profile.model_validate(A14B).model_dump()
    keys = {key for key in flatten(whole) if key not in ("name", "extends")}
    assert keys == set(KEYS)
