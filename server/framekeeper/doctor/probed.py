"""What the probes' answers mean for a profile."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from framekeeper.doctor.finding import Finding, Severity
from framekeeper.doctor.readings import Probed, Readings, gib, joined
from framekeeper.profiles.schema import Profile

_TORCH = "https://github.com/pytorch/pytorch"
_OMNI = "https://github.com/vllm-project/vllm-omni"
_FORWARD = "https://github.com/gpustack/gpustack/issues/1254"
_ATTENTION = {
    "flash_attn": "vllm-omni FLASH_ATTN",
    "torch_sdpa": "vllm-omni TORCH_SDPA",
    "sage_attn": "vllm-omni SAGE_ATTN",
}
# Words of CUDA's refusals, why, and what helps; https://docs.nvidia.com/cuda/cuda-runtime-api (error codes).
_CUDA = (
    (
        r"\b802\b|not yet initialized",
        "the NVLink fabric is not up, and CUDA waits for it",
        "start nvidia-fabricmanager, of exactly the driver's version, on the host",
        _FORWARD,
    ),
    (
        r"\b803\b|unsupported display driver|driver/library",
        "libcuda and the kernel module are of different versions",
        "no libcuda in the image and no compat directory in LD_LIBRARY_PATH; reboot after a driver update",
        _FORWARD,
    ),
    (
        r"\b804\b|forward compatibility",
        "CUDA's compat libraries are for data-centre cards only",
        "take the compat directory out of LD_LIBRARY_PATH, and update the driver",
        _FORWARD,
    ),
    (
        r"driver.*(too old|insufficient)|insufficient",
        "the driver is older than this runtime's CUDA",
        "a newer driver on the host, or an older runtime",
        "https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html",
    ),
    (
        r"no kernel image",
        "this torch has no code for the card",
        "runtime: omni-0.30-cu130 from compute capability 7.5 on, torch-2.4.1-cu124 up to 9.0",
        "https://github.com/vllm-project/vllm/issues/16901",
    ),
)


def probe_findings(profile: Profile, readings: Readings) -> list[Finding]:
    """All about the probes; nothing where none was run."""
    found: list[Finding] = []
    for name, judge in _JUDGES.items():
        answers = [each for each in readings.probes if each.probe == name]
        for answer in [each for each in answers if not each.tried]:
            found.append(_not_tried(name, answer))
        ended = [each for each in answers if each.part == "end"]
        judged = [each for each in answers if each.tried and each.part != "end"]
        found += judge(profile, judged)
        found += [_ended(name, each) for each in ended]
    return found


def _not_tried(name: str, answer: Probed) -> Finding:
    return Finding(
        check=f"probe-{name}",
        severity="note",
        seen=f"not tried: {answer.seen}",
        why="what was not tried is not known to work",
        advice="framekeeper doctor again, before the engine is started",
    )


def _ended(name: str, answer: Probed) -> Finding:
    killed = "SIGKILL" in answer.seen
    return Finding(
        check=f"probe-{name}",
        severity="fatal",
        seen=answer.seen,
        why="the kernel ends processes so where memory of container or host is spent"
        if killed
        else "an engine does the same when it starts or at its first step",
        advice="a larger memory limit of the container, or a smaller admits.size and admits.num_frames"
        if killed
        else "the runtime's own image, or install it again from its lock",
    )


def _good(check: str, answers: Iterable[Probed], verb: str) -> Iterator[Finding]:
    parts = [answer.part for answer in answers if answer.ok]
    if parts:
        yield Finding(check=check, severity="ok", seen=f"{verb}: {joined(parts, 12)}")


def _libraries(_profile: Profile, answers: list[Probed]) -> Iterator[Finding]:
    yield from _good("libraries", [each for each in answers if each.part.startswith("import ")], "loaded")
    yield from _good("extensions", [each for each in answers if each.part.startswith("extension ")], "loaded")
    for answer in answers:
        if answer.part == "cuda":
            yield _cuda(answer)
        elif not answer.ok and answer.part.startswith("import "):
            yield Finding(
                check="libraries",
                severity="fatal",
                seen=f"{answer.part} fails: {answer.seen}",
                why="the engine imports the same when it starts",
                advice="install the runtime again from its lock, with nothing on top",
            )
    broken = [each for each in answers if each.part.startswith("extension ") and not each.ok]
    for answer in broken:
        yield Finding(
            check="extensions",
            severity="fatal" if _needed(answer.part) else "note",
            seen=f"{answer.part.removeprefix('extension ')}: {answer.seen}",
            why="a compiled extension that was built for another torch, CUDA or C++ library does not load",
            advice="vllm and torch of the runtime's lock, both from there",
            evidence=f"{_OMNI}/pull/2935",
        )


def _needed(part: str) -> bool:
    if "flash_attn" in part:
        return False  # the attention probe tells whether any flash attention runs
    return part.startswith("extension vllm._C")


def _cuda(answer: Probed) -> Finding:
    if answer.ok:
        return Finding(check="cuda", severity="ok", seen=answer.seen)
    for words, why, advice, evidence in _CUDA:
        if re.search(words, answer.seen, re.IGNORECASE):
            return Finding(
                check="cuda", severity="fatal", seen=answer.seen, why=why, advice=advice, evidence=evidence
            )
    return Finding(
        check="cuda",
        severity="fatal",
        seen=answer.seen,
        why="the engine brings CUDA up in the same way",
        advice="what the driver check above says; else the host's kernel log",
    )


def _kernels(profile: Profile, answers: list[Probed]) -> Iterator[Finding]:
    yield from _good("kernels", answers, "right results")
    for answer in answers:
        if answer.ok:
            continue
        cutlass = "cutlass" in answer.part
        needed = not cutlass or (profile.quantization != "none" and profile.quantization in answer.part)
        yield Finding(
            check="cutlass_scaled_mm" if cutlass else "kernels",
            severity="fatal" if needed else "note",
            seen=f"{answer.part}: {answer.seen}",
            why="quantised layers call it at every step"
            if cutlass
            else "every step is made of such products",
            advice="quantization: none" if cutlass else "another card; the driver's and torch's versions",
            evidence="https://github.com/vllm-project/vllm/issues/16901" if cutlass else "",
        )


def _attention(profile: Profile, answers: list[Probed]) -> Iterator[Finding]:
    yield from _good("attention", answers, "right results")
    runs = {answer.part for answer in answers if answer.ok}
    for answer in answers:
        if answer.ok:
            continue
        yield Finding(
            check="attention",
            severity="fatal" if _attention_needed(profile, answer.part, runs) else "note",
            seen=f"{answer.part}: {answer.seen}",
            why=f"the profile has attention: {profile.attention}",
            advice="attention: torch_sdpa" if "TORCH_SDPA" in runs or "torch MATH" in runs else "the runtime",
            evidence="https://github.com/Dao-AILab/flash-attention/issues/1540",
        )


def _attention_needed(profile: Profile, part: str, runs: set[str]) -> bool:
    if part in ("torch MATH", "vllm-omni"):
        return True
    if not part.startswith("vllm-omni "):
        return False
    if profile.attention == "auto":
        return not any(each.startswith("vllm-omni ") for each in runs)
    return part == _ATTENTION[profile.attention]


def _compiling(profile: Profile, answers: list[Probed]) -> Iterator[Finding]:
    yield from _good("compiling", answers, "works")
    for answer in answers:
        if answer.ok:
            continue
        # Triton's kernels are built with the C compiler whether or not torch.compile is on.
        severity: Severity = "note" if profile.devices.kind == "cpu" else "warn"
        yield Finding(
            check="compiling",
            severity="fatal" if profile.compile != "off" else severity,
            seen=f"{answer.part}: {answer.seen}",
            why="Triton and Inductor compile at the first step, and the step fails where they cannot",
            advice="gcc and the engine Python's headers (python3-dev) in the image, or compile: off",
            evidence=f"{_TORCH}/pull/170235",
        )


def _allocator(profile: Profile, answers: list[Probed]) -> Iterator[Finding]:
    for answer in answers:
        had = gib(int(answer.figures.get("bytes", 0)))
        if answer.ok:
            reserved = answer.figures.get("reserved")
            most = f", {gib(int(reserved))} reserved at most" if reserved else ""
            yield Finding(
                check="allocator", severity="ok", seen=f"the peak of {had} was allocated and freed{most}"
            )
            continue
        why, advice, evidence = _allocator_cure(profile, answer.seen)
        yield Finding(
            check="allocator",
            severity="fatal",
            seen=f"after {had}, at {answer.part}: {answer.seen}",
            why=why,
            advice=advice,
            evidence=evidence,
        )


def _allocator_cure(profile: Profile, words: str) -> tuple[str, str, str]:
    """Why, what to set, and the evidence, for an allocation that failed with these words."""
    allocator = profile.allocator
    if allocator.expandable_segments:
        return (
            "expandable segments map memory piece by piece, and a mapping that fails breaks the segment",
            "allocator.expandable_segments: false",
            f"{_TORCH}/issues/166234",
        )
    if profile.devices.kind == "cpu":
        return (
            "the host's or the container's memory does not hold the checkpoint and one video",
            "a larger memory limit, or a smaller admits.size and admits.num_frames",
            "",
        )
    if "out of memory" not in words.lower() and allocator.backend != "native":
        return ("the allocator itself failed", "allocator.backend: native", f"{_TORCH}/issues/188008")
    smaller = [] if profile.vae.tiling else ["vae.tiling: true"]
    smaller += ["offload: layerwise"] if profile.offload != "layerwise" else []
    return (
        "the card does not hold what the largest admitted video needs",
        ", or ".join([*smaller, "a smaller admits.size or admits.num_frames"]),
        f"{_OMNI}/issues/704",
    )


def _pinned(profile: Profile, answers: list[Probed]) -> Iterator[Finding]:
    for answer in answers:
        had = gib(int(answer.figures.get("bytes", 0)))
        if answer.ok:
            yield Finding(check="pinned-memory", severity="ok", seen=f"{had} of host memory were page-locked")
            continue
        yield Finding(
            check="pinned-memory",
            severity="fatal",
            seen=f"only {had} of host memory could be page-locked: {answer.seen}",
            why=f"offload: {profile.offload} locks all weights that it keeps in host memory",
            advice="offload_pin_memory: false, or a higher memlock limit; under WSL2 a few GiB are the most",
            evidence="https://github.com/microsoft/WSL/issues/14078",
        )


_JUDGES = {
    "extensions": _libraries,
    "kernels": _kernels,
    "attention": _attention,
    "compiling": _compiling,
    "allocator": _allocator,
    "pinned": _pinned,
}
