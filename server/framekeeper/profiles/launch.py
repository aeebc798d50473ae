"""From a profile and the facts of a host to what a worker process gets: environment, options, devices.

`resolve` is pure: it reads no file and no environment, so that what `framekeeper profile show` prints is what
runs. The environment is built from nothing; a variable that the supervisor inherited reaches a worker only
if it is one of PASSED.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from framekeeper.profiles.facts import Card, HostFacts
from framekeeper.profiles.fallbacks import at_rung, rung_name
from framekeeper.profiles.faults import Fault, ProfileError
from framekeeper.profiles.load import rule_faults
from framekeeper.profiles.runtimes import RUNTIMES
from framekeeper.profiles.schema import Allocator, Profile

__all__ = ["PASSED", "Card", "HostFacts", "Launch", "resolve"]

# Inherited variables that a worker gets: where programs and the driver's libraries are, and how text looks.
PASSED = ("PATH", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH")
_REPOSITORY = re.compile(r"(?P<owner>[\w.-]+)/(?P<name>[\w.-]+)@(?P<revision>[0-9a-f]{40})")


@dataclass(frozen=True, kw_only=True)
class Launch:
    """All a supervisor needs to start one worker.

    `environment` is complete. `options` are the backend's: device, devices, executor, dtype, attention,
    compile, offload, offload_pin_memory, offload_prefetch, quantization (None where off),
    attention_quantization and cache (words, `none` where off), parallel, vae, boundary_ratio, flow_shift.
    `devices` are what to lock: UUIDs of cards, or `cpu-N`. `directories` must exist, private to the user,
    before the start. `profile` is the profile on this rung: what is admitted and every deadline come from it.
    `warnings` are what rules found and did not refuse, a line each.
    """

    profile: Profile
    group: int
    rung: int
    rung_name: str
    runtime: str
    backend: str
    model: str
    environment: dict[str, str]
    options: dict[str, Any]
    devices: tuple[str, ...]
    cache_directory: Path
    directories: tuple[Path, ...]
    warnings: tuple[str, ...] = ()


def _refusal(profile: Profile, key: str, value: object, reason: str, advice: str) -> ProfileError:
    where = f"profile {profile.name}"
    return ProfileError([Fault(where=where, key=key, value=str(value), reason=reason, advice=advice)])


def choose_devices(profile: Profile, facts: HostFacts, group: int) -> tuple[str, ...]:
    """Names of this group's devices. Raises ProfileError when the host has not enough of them."""
    count = profile.devices.count
    wanted = range(group * count, (group + 1) * count)
    if profile.devices.kind == "cpu":
        return tuple(f"cpu-{index}" for index in wanted)
    present = [card.uuid for card in facts.cards or ()]
    listed = present if profile.devices.uuids == "auto" else list(profile.devices.uuids)
    if len(listed) < wanted.stop:
        raise _refusal(
            profile,
            "devices.count",
            count,
            f"group {group} needs devices {wanted.start}..{wanted.stop - 1}, and there are {len(listed)}",
            "fewer devices or fewer groups (FRAMEKEEPER_ENGINE_GROUPS), or give the container more cards",
        )
    return tuple(listed[wanted.start : wanted.stop])


def allocator_text(allocator: Allocator) -> str:
    """The allocator's settings as torch reads them: key:value with commas between, without defaults."""
    parts = [f"expandable_segments:{allocator.expandable_segments}"]
    if allocator.backend != "native":
        parts.append(f"backend:{allocator.backend}")
    for key in (
        "max_split_size_mb",
        "garbage_collection_threshold",
        "roundup_power2_divisions",
        "max_non_split_rounding_mb",
    ):
        value = getattr(allocator, key)
        if value is not None:
            parts.append(f"{key}:{value}")
    return ",".join(parts)


def model_directory(profile: Profile, facts: HostFacts) -> str:
    """Absolute path of the checkpoint: a directory, or a repository's revision in the local hub cache."""
    repository = _REPOSITORY.fullmatch(profile.model)
    if repository is None:
        return str(facts.base_directory / profile.model)
    folder = f"models--{repository['owner']}--{repository['name']}"
    return str(facts.cache_directory / "huggingface" / "hub" / folder / "snapshots" / repository["revision"])


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _card_slug(profile: Profile, facts: HostFacts, devices: tuple[str, ...]) -> str:
    if profile.devices.kind == "cpu":
        return "cpu"
    names = {card.uuid: card for card in facts.cards or ()}
    card = names.get(devices[0])
    return f"{_slug(card.name)}-sm{card.capability.replace('.', '')}" if card else "card"


def _options(profile: Profile) -> dict[str, Any]:
    return {
        "device": profile.devices.kind,
        "devices": profile.devices.count,
        "executor": profile.executor,
        "dtype": profile.dtype,
        "attention": profile.attention,
        "compile": profile.compile,
        "offload": profile.offload,
        "offload_pin_memory": profile.offload_pin_memory,
        "offload_prefetch": profile.offload_prefetch,
        "quantization": None if profile.quantization == "none" else profile.quantization,
        "parallel": profile.parallel.model_dump(),
        "attention_quantization": profile.attention_quantization,
        "cache": profile.cache,
        "vae": profile.vae.model_dump(),
        "boundary_ratio": profile.defaults.boundary_ratio,
        "flow_shift": profile.defaults.flow_shift,
    }


def _device_environment(
    profile: Profile, facts: HostFacts, devices: tuple[str, ...], groups: int
) -> dict[str, str]:
    if profile.devices.kind == "cpu":
        threads = max(1, facts.cpu_count // (groups * profile.devices.count))
        return {
            "FRAMEKEEPER_DEVICE": "cpu",
            "FRAMEKEEPER_CPU_DEVICES": str(profile.devices.count),
            "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": str(threads),
        }
    runtime = RUNTIMES.get(profile.runtime)
    variable = runtime.allocator_variable if runtime else "PYTORCH_CUDA_ALLOC_CONF"
    return {
        "FRAMEKEEPER_DEVICE": "cuda",
        "CUDA_VISIBLE_DEVICES": ",".join(devices),
        # By bus, so that an index means the same for the driver, torch and NCCL.
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        variable: allocator_text(profile.allocator),
    }


def _cache_environment(cache: Path, facts: HostFacts, runtime: str) -> dict[str, str]:
    variables = {
        "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
        "TRITON_CACHE_DIR": str(cache / "triton"),
        "CUDA_CACHE_PATH": str(cache / "cuda"),
        "VLLM_CACHE_ROOT": str(cache / "vllm"),
        "XDG_CACHE_HOME": str(cache / "xdg"),
        "HF_HOME": str(facts.cache_directory / "huggingface"),
    }
    if runtime == "torch-2.4.1-cu124":
        # Off by default there, and without it a restart compiles everything again.
        variables["TORCHINDUCTOR_FX_GRAPH_CACHE"] = "1"
    return variables


def _compile_environment(profile: Profile) -> dict[str, str]:
    if profile.compile != "off":
        return {}
    # torch 2.4.1 takes any text as "disable", 2.13 only "1"; "1" means the same to both.
    return {"TORCH_COMPILE_DISABLE": "1", "TORCHDYNAMO_DISABLE": "1"}


_ALWAYS = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    # A forked child of a process that has CUDA open cannot use it.
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONUNBUFFERED": "1",
    "PYTHONNOUSERSITE": "1",
    "PYTHONFAULTHANDLER": "1",
}


def resolve(profile: Profile, facts: HostFacts, *, group: int = 0, rung: int = 0, groups: int = 1) -> Launch:
    """What to start for device group `group` of `groups`, `rung` steps down the profile's fallbacks.

    Raises ProfileError when the host has not the devices, or when the profile on that rung breaks a rule on
    this host; IndexError when there is no such rung.
    """
    lower = at_rung(profile, rung)
    faults = rule_faults(lower, facts, None)
    if any(fault.severity == "refuse" for fault in faults):
        raise ProfileError(faults)
    devices = choose_devices(lower, facts, group)
    card = _card_slug(lower, facts, devices)
    cache = facts.cache_directory / lower.runtime / card / lower.name / f"group-{group}"
    # Sockets are made below TMPDIR, and a socket's path must fit into 108 bytes: keep it short.
    mark = hashlib.sha256(str(facts.run_directory).encode()).hexdigest()[:8]
    temporary = facts.temporary_directory / f"fk-{mark}-{group}"
    home = facts.run_directory / f"group-{group}" / "home"
    environment = {name: facts.inherited[name] for name in PASSED if name in facts.inherited}
    environment.setdefault("PATH", "/usr/local/bin:/usr/bin:/bin")
    environment.setdefault("LANG", "C.UTF-8")
    environment |= _ALWAYS | {"HOME": str(home), "TMPDIR": str(temporary)}
    environment |= _device_environment(lower, facts, devices, groups)
    environment |= _cache_environment(cache, facts, lower.runtime) | _compile_environment(lower)
    return Launch(
        profile=lower,
        group=group,
        rung=rung,
        rung_name=rung_name(profile, rung),
        runtime=lower.runtime,
        backend=lower.backend,
        model=model_directory(lower, facts),
        environment=environment,
        options=_options(lower),
        devices=devices,
        cache_directory=cache,
        directories=(home, temporary, cache),
        warnings=tuple(str(fault) for fault in faults),
    )
