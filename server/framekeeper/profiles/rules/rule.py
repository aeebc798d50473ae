"""What a rule is: an id, the evidence, and a small function that finds what contradicts it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from framekeeper.profiles.facts import HostFacts
from framekeeper.profiles.schema import Profile


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One broken rule in one profile: the key and its value, why it is refused, what to set instead."""

    key: str
    value: str
    reason: str
    advice: str


Check = Callable[[Profile, HostFacts], Iterable[Finding]]


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A combination that is known to fail.

    `runtimes` are those it holds for, empty for all. On the runtimes of `measured_on` a profile may break
    the rule by naming it in `accept_risk`; nowhere else. `warn` findings are printed and refuse nothing.
    """

    id: str
    summary: str
    evidence: tuple[str, ...]
    check: Check
    runtimes: frozenset[str] = frozenset()
    measured_on: frozenset[str] = frozenset()
    severity: Literal["refuse", "warn"] = "refuse"

    def findings(self, profile: Profile, facts: HostFacts) -> list[Finding]:
        """What contradicts the rule, empty where it does not hold for this runtime or is accepted."""
        if self.runtimes and profile.runtime not in self.runtimes:
            return []
        if self.id in profile.accept_risk and profile.runtime in self.measured_on:
            return []
        return list(self.check(profile, facts))


def omni_source(file: str) -> str:
    """Evidence that is a file of the published vllm-omni 0.30.0, which PyPI keeps unchanged."""
    return f"https://github.com/vllm-project/vllm-omni/releases/tag/v0.30.0 (vllm_omni/{file})"


def rule(
    id: str,
    *evidence: str,
    runtimes: Iterable[str] = (),
    measured_on: Iterable[str] = (),
    severity: Literal["refuse", "warn"] = "refuse",
) -> Callable[[Check], Rule]:
    """Make a Rule of a function; the first sentence of its docstring is the rule's summary."""

    def wrap(check: Check) -> Rule:
        summary = inspect.cleandoc(check.__doc__ or "").splitlines()[0]
        return Rule(
            id=id,
            summary=summary,
            evidence=evidence,
            check=check,
            runtimes=frozenset(runtimes),
            measured_on=frozenset(measured_on),
            severity=severity,
        )

    return wrap
