"""The conflict rules: combinations known to crash, to corrupt or to do nothing, each with public evidence."""

from __future__ import annotations

from framekeeper.profiles.facts import HostFacts
from framekeeper.profiles.rules import offload
from framekeeper.profiles.rules.rule import Finding, Rule
from framekeeper.profiles.schema import Profile

RULES: tuple[Rule, ...] = offload.RULES
BY_ID: dict[str, Rule] = {each.id: each for each in RULES}


def check(profile: Profile, facts: HostFacts) -> list[tuple[Rule, Finding]]:
    """All findings of all rules on one profile, in the order of the rules."""
    return [(each, finding) for each in RULES for finding in each.findings(profile, facts)]


__all__ = ["BY_ID", "RULES", "Finding", "Rule", "check"]
