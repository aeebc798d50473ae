"""Writes the table of checks in docs/doctor.md: `python -m framekeeper.doctor.document docs/doctor.md`."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from framekeeper.doctor.finding import Severity
from framekeeper.marked_table import Marks
from framekeeper.profiles.rules import RULES

MARKS = Marks(what="checks", module="framekeeper.doctor.document", file="docs/doctor.md")


@dataclass(frozen=True, kw_only=True)
class Check:
    """One id: what is looked at, the gravest it can be, and whether it needs the engine's Python."""

    look: str
    gravest: Severity
    probe: bool = False


def _fast(look: str, gravest: Severity) -> Check:
    return Check(look=look, gravest=gravest)


def _probe(look: str, gravest: Severity = "fatal") -> Check:
    return Check(look=look, gravest=gravest, probe=True)


CHECKS: dict[str, Check] = {
    "driver": _fast(
        "nvidia-smi answers; its refusals (NVML mismatch, lost devices, no module) by name", "fatal"
    ),
    "card-lost": _fast("every card answers, also beside healthy ones", "fatal"),
    "card-held": _fast("other processes, or memory that somebody unseen holds", "warn"),
    "ecc": _fast("uncorrectable memory errors since the card's start", "fatal"),
    "xid": _fast("Xids of failing cards in the kernel's log, where this account may read it", "warn"),
    "mig": _fast("cards cut into MIG instances", "warn"),
    "persistence": _fast("persistence mode", "note"),
    "fabric": _fast("the NVLink fabric's state (CUDA error 802)", "fatal"),
    "forward-compatibility": _fast(
        "CUDA's compat libraries before a consumer card's driver (803, 804)", "fatal"
    ),
    "wsl": _fast("WSL2 and Docker Desktop", "note"),
    "docker": _fast("Docker's version, where it can be asked", "ok"),
    "container-toolkit": _fast("nvidia-container-toolkit's version, where it can be asked", "warn"),
    "memory": _fast("memory of host or container against both experts and the text encoder", "warn"),
    "shm": _fast("free space of /dev/shm", "warn"),
    "open-files": _fast("the limit of open files", "warn"),
    "disk-media": _fast("space and rights for videos", "fatal"),
    "disk-caches": _fast("space and rights for compile caches", "fatal"),
    "clock": _fast("the clock's year, and whether something synchronizes it", "fatal"),
    "profile": _fast("the profile can be read and breaks no rule on this host", "fatal"),
    "runtime": _fast("the profile's runtime is installed", "fatal"),
    "runtime-versions": _fast("installed packages against the runtime's lock", "warn"),
    "runtime-pair": _fast("vllm and vllm-omni are of one line", "fatal"),
    "compiler": _fast("a C compiler, where the profile compiles", "fatal"),
    "python-headers": _fast("Python.h of the engine's Python, where the profile compiles", "fatal"),
    "caches": _fast("the caches are this user's and whole", "ok"),
    "caches-shared": _fast("caches that others may write", "warn"),
    "caches-damaged": _fast("empty or cut files in the caches", "warn"),
    "environment": _fast("no variable contradicts the profile", "ok"),
    "environment-placebo": _fast("variables that nothing reads, with the key that does the job", "warn"),
    "environment-overridden": _fast("variables that the profile decides otherwise", "warn"),
    "environment-dropped": _fast("variables of this field that do not reach a worker", "note"),
    "weights": _fast("the checkpoint is there; every fault of `framekeeper weights check`", "fatal"),
    "libraries": _probe("the engine's libraries can be imported"),
    "extensions": _probe("vllm's compiled extensions load (ABI)"),
    "cuda": _probe("CUDA comes up and runs a kernel on every card"),
    "kernels": _probe("matrix products on every card, held against float32"),
    "cutlass_scaled_mm": _probe("the fp8 and int8 kernel is there, and one call is right on every card"),
    "attention": _probe("each attention kernel runs and is right"),
    "compiling": _probe("a C module with Python.h, and torch.compile where the profile compiles"),
    "allocator": _probe("the profile's peak can be allocated and freed with its allocator's settings"),
    "pinned-memory": _probe("what the profile page-locks can be page-locked"),
}
"""Every check but the rules of profiles, which have ids of their own, and `probe-…`, how a probe ended."""


def known(check: str) -> bool:
    """Whether an id of a finding is one of these, a rule's, or a part of the weights check."""
    rules = {rule.id for rule in RULES}
    return check in CHECKS or check in rules or check.startswith(("probe-", "weights-"))


def table() -> str:
    """The table in Markdown, one row a check."""
    rows = ["| Check | Looks at | Gravest | In `--fast` |", "|---|---|---|---|"]
    for name, check in CHECKS.items():
        rows.append(f"| `{name}` | {check.look} | {check.gravest} | {'no' if check.probe else 'yes'} |")
    return "\n".join(rows)


def document(text: str) -> str:
    """`text` with the table between its two marks renewed. Raises ValueError when a mark is missing."""
    return MARKS.renewed(text, table())


def main(arguments: list[str]) -> int:
    """Renew the table in the file that is named."""
    return MARKS.main(table(), arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
