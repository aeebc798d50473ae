"""The table of signatures in docs/incidents.md, written from signatures.yaml.

python -m framekeeper.diagnosis.document > docs/incidents.md
"""

from __future__ import annotations

import sys

from framekeeper.diagnosis.ladder import Policy
from framekeeper.diagnosis.signature import Action, Grade, RungKind, Signature, signatures

_ACTIONS: dict[Action, str] = {
    "restart_same": "start the same again; when it comes back too often, the next rung",
    "next_rung": "the first rung of the profile's `fallbacks` that makes a named change, else the next rung",
    "reduce_shape": "refuse videos of that size and length for a while",
    "clear_caches": "empty the engine's compile caches; when it comes back, the next rung",
    "stop_fix_host": "stop: somebody has to repair the host or its container",
    "stop_fix_weights": "stop: somebody has to repair the model's files",
    "stop_fix_configuration": "stop: somebody has to change profile, image or versions",
    "none": "nothing: the engine is not at fault",
}
_RUNGS: dict[RungKind, str] = {
    "compile_off": "`compile: off`",
    "quantization_off": "`quantization: none`",
    "expandable_segments_off": "`allocator.expandable_segments: false`",
    "prefetch_sync": "`offload_prefetch: sync`",
    "unpinned": "`offload_pin_memory: false`",
    "offload_off": "`offload: none`",
    "offload": "more `offload`",
    "in_process": "`executor: in_process`",
    "attention_sdpa": "`attention: torch_sdpa`",
    "cache_off": "`cache: none`",
    "smaller_shape": "smaller `admits`",
    "other_backend": "another `backend`",
}
_GRADES: dict[Grade, str] = {
    "cause": "the failure itself",
    "general": "words that wrap a failure; counts where no cause is found",
    "client": "a wrong request; never counts against the engine",
    "follow_on": "always follows something else; counts where nothing better is found",
    "note": "printed by engines that serve, too; never the reason of an end",
}
_HEAD = """\
# Incidents

<!-- Written by `python -m framekeeper.diagnosis.document`; change signatures.yaml or document.py instead. -->

Every unplanned end of an engine is an incident: its cause in one sentence, the first telling line of the
engine's log with the lines around it, how the process ended, and what was decided.

## How a cause is found

Only the log since the engine's newest start is read, and the first telling line counts. Before it is
compared, a line loses colours, time stamps, log levels, and the prefixes of processes, ranks and log
collectors; code inside tracebacks is skipped; wrapped lines are joined, for every rank by itself. Without a
cause in the log a signal or a missed deadline counts. SIGKILL means the memory of host or container
where the kernel has counted a kill for memory in our cgroup, and otherwise that the engine was killed from
outside. What nothing explains is `unknown`: a new process, and the job is tried again.

## What happens then

A process that may be poisoned never serves again. Between two starts lie longer and longer pauses; {loop}
ends on one rung within {window:g} minutes, or so many starts in a row that never got ready, lead to the next
rung, and on the lowest rung to `failed`. Rungs are tried back up only by an operator or after a configured
quiet time. A job that has ended {quarantine} engines is quarantined: it fails with that reason.

| action | meaning |
|---|---|
"""


def _row(*cells: str) -> str:
    return "| " + " | ".join(each.replace("|", "\\|") for each in cells) + " |\n"


def _signature_row(signature: Signature) -> str:
    action = f"`{signature.action}`"
    if signature.patience:
        action += f" (after {signature.patience} restarts)"
    changes = ", ".join(_RUNGS[each] for each in signature.rungs)
    sources = " ".join(f"[{number}]({_address(each)})" for number, each in enumerate(signature.sources, 1))
    return _row(
        f"`{signature.id}`",
        signature.cause,
        action,
        changes,
        "yes" if signature.poisons else "no",
        "yes" if signature.retry else "no",
        sources,
    )


def _address(source: str) -> str:
    """The URL of a source; a file inside a package follows it in parentheses."""
    return source.partition(" ")[0]


def text() -> str:
    """The whole page."""

    policy = Policy()
    parts = [
        _HEAD.format(
            loop=policy.loop_ends, window=policy.window_seconds / 60, quarantine=policy.quarantine_ends
        )
    ]
    parts += [_row(f"`{action}`", meaning) for action, meaning in _ACTIONS.items()]
    parts.append("\n## Signatures\n")
    for grade, meaning in _GRADES.items():
        parts.append(f"\n### {grade}\n\nIs {meaning}.\n\n")
        parts.append("| signature | cause | action | changes that help | poisons | job again | sources |\n")
        parts.append("|---|---|---|---|---|---|---|\n")
        parts += [_signature_row(each) for each in signatures() if each.grade == grade]
    return "".join(parts)


if __name__ == "__main__":
    sys.stdout.write(text())
