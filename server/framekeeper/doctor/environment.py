"""Variables of the environment: those that do nothing, and those that a profile decides otherwise."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from framekeeper.doctor.finding import Finding
from framekeeper.profiles.environment import examine_environment
from framekeeper.profiles.launch import Launch

_READERS = ("torch", "vllm", "vllm_omni", "diffusers", "triton")


def environment_findings(
    inherited: Mapping[str, str], launch: Launch, engine: Path | None = None
) -> list[Finding]:
    """One finding for each variable; with `engine` also whether anything installed there names it."""
    variables = examine_environment(inherited, launch)
    named = names_read(engine, {each.name for each in variables}) if engine and variables else None
    found = []
    for each in variables:
        reason = each.reason
        if named is not None and each.kind != "placebo":
            reader = named.get(each.name)
            reason += (
                f"; {reader} of this runtime reads it" if reader else "; nothing installed here names it"
            )
        found.append(
            Finding(
                check=f"environment-{each.kind}",
                severity="note" if each.kind == "dropped" else "warn",
                seen=f"{each.name}={each.value}: {reason}",
                why="whoever set it believes that it does something here",
                advice=f"unset it; in the profile: {each.advice}",
                evidence="https://pytorch.org/docs/stable/torch.compiler_troubleshooting.html"
                if each.kind == "placebo"
                else "",
            )
        )
    if not found:
        found.append(Finding(check="environment", severity="ok", seen="no variable contradicts the profile"))
    return found


def names_read(engine: Path, names: Collection[str]) -> dict[str, str] | None:
    """Which library's Python source names each variable; None where there is no such environment."""
    libraries = next(iter(sorted(engine.glob("lib/python3.*/site-packages"))), None)
    if libraries is None:
        return None
    wanted = {name: name.encode() for name in names}
    found: dict[str, str] = {}
    for library in _READERS:
        for path in (libraries / library).rglob("*.py"):
            if not wanted:
                return found
            try:
                text = path.read_bytes()
            except OSError:
                continue
            for name in [name for name, word in wanted.items() if word in text]:
                # TORCH_COMPILE stands in TORCH_COMPILE_DISABLE, too: only the whole word in quotes counts.
                if f'"{name}"'.encode() in text or f"'{name}'".encode() in text:
                    found[name] = library
                    del wanted[name]
    return found
