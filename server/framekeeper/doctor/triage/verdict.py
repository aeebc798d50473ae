"""Which layer is at fault, in one sentence, and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from framekeeper.doctor.triage.outcome import Outcome
from framekeeper.doctor.triage.plan import StepName

_ADVICE: dict[StepName, str] = {
    "caches": "remove them with `framekeeper doctor --clear-caches`",
    "compile": "set `compile: off` in the profile",
    "quantization": "set `quantization: none`, or look at the scales with `framekeeper weights check --deep`",
    "processes": "set `executor: in_process` and one device, or look at /dev/shm, NCCL and the links "
    "between the cards with `framekeeper doctor`",
    "direct": "report it to Framekeeper with the file that `--report` writes",
}

_PLURAL: tuple[StepName, ...] = ("caches", "processes", "direct")
_LARGER = "if only large videos fail, try `--whole`, which takes the profile's own warm-up shape"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """`layer` is None where nothing fails. `status` is the exit status: 0 nothing to find, 1 found."""

    layer: str | None
    sentence: str
    advice: str
    status: int


def judge(outcomes: Sequence[Outcome]) -> Verdict:
    """The verdict on all that was tried, in its order."""
    tried = [each for each in outcomes if each.state in ("passed", "failed")]
    if tried[0].state == "passed":
        sentence = "The job passes as configured: triage has nothing to find."
        return Verdict(layer=None, sentence=sentence, advice=_LARGER, status=0)
    weights = next((each for each in tried if each.step.how == "weights"), None)
    passed = next((each for each in tried if each.state == "passed" and each is not weights), None)
    before = [each for each in tried if each.step.how != "weights" and each.state == "failed"][-1]
    if passed is not None:
        step = passed.step
        how = f" ({'; '.join(step.changed)})" if step.changed else ""
        verb, them = ("are", "them") if step.name in _PLURAL else ("is", "it")
        sentence = (
            f"{step.layer[0].upper()}{step.layer[1:]} {verb} at fault: without {them} the job passes{how}; "
            f"with {them} it fails ({before.signature})."
        )
        return Verdict(layer=step.name, sentence=sentence, advice=_ADVICE[step.name], status=1)
    if weights is not None and weights.state == "failed":
        sentence = f"The weights are at fault: {weights.line}."
        model = "" if weights.step.launch is None else f" {weights.step.launch.model}"
        advice = f"`framekeeper weights check --deep{model}` lists everything; fetch the files again"
        return Verdict(layer="weights", sentence=sentence, advice=advice, status=1)
    found = "weights in order" if weights is not None else "weights not checked"
    sentence = (
        f"The runtime or the host is at fault: no step passes ({found}); the last failure is "
        f"{before.signature}: {(before.cause or '').rstrip('.')}."
    )
    advice = "`framekeeper doctor` looks at driver, cards, memory and packages"
    return Verdict(layer="runtime or host", sentence=sentence, advice=advice, status=1)
