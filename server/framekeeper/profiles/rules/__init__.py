"""The conflict rules: combinations known to crash, to corrupt or to do nothing, each with public evidence."""

from __future__ import annotations

from framekeeper.profiles.facts import HostFacts
from framekeeper.profiles.rules import (
    allocator,
    cards,
    compiling,
    container,
    offload,
    parallel,
    picture,
    quantization,
    runtime,
    shape,
)
from framekeeper.profiles.rules.rule import Finding, Rule
from framekeeper.profiles.schema import Profile

_MODULES = (runtime, cards, allocator, offload, compiling, quantization, parallel, container, shape, picture)
RULES: tuple[Rule, ...] = tuple(each for module in _MODULES for each in module.RULES)
BY_ID: dict[str, Rule] = {each.id: each for each in RULES}

ACCEPTANCE = Rule(
    id="risk-not-acceptable",
    summary="accept_risk names rules that allow it, on a runtime where breaking them was measured.",
    evidence=("https://github.com/vllm-project/vllm-omni/issues/2992",),
    check=lambda profile, _facts: _unacceptable(profile),
)


def _unacceptable(profile: Profile) -> list[Finding]:
    """Accepted risks that are none, or that nobody has measured on this runtime."""
    findings = []
    for name in profile.accept_risk:
        known = BY_ID.get(name)
        if known is not None and profile.runtime in known.measured_on:
            continue
        if known is None:
            reason, advice = "is not the id of a rule", f"one of {', '.join(acceptable_ids())}"
        elif known.measured_on:
            reason = f"was measured on {', '.join(sorted(known.measured_on))} only, not on {profile.runtime}"
            advice = "what the rule itself says"
        else:
            reason, advice = "is a rule without exceptions", "what the rule itself says"
        findings.append(Finding(key=f"accept_risk.{name}", value="", reason=reason, advice=advice))
    return findings


def acceptable_ids() -> list[str]:
    """Ids of the rules that a profile may break somewhere."""
    return [each.id for each in RULES if each.measured_on]


def check(profile: Profile, facts: HostFacts) -> list[tuple[Rule, Finding]]:
    """All findings of all rules on one profile, in the order of the rules."""
    return [(each, finding) for each in (*RULES, ACCEPTANCE) for finding in each.findings(profile, facts)]


__all__ = ["ACCEPTANCE", "BY_ID", "RULES", "Finding", "Rule", "acceptable_ids", "check"]
