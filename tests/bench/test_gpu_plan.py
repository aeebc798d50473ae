"""The plan of what is measured on a card: whole, within its budget, and told truly by the document."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from gpu_bench import GPU, script

from framekeeper.profiles.load import load_profile
from profile_samples import GIB, card, host
from system import PROJECT

plan = script("plan")
profiles = script("profiles")

UNRUN = [each for each in plan.SECTIONS if not plan.has_run(each, plan.results())]


def test_what_is_taken_fits_the_budget_by_its_own_estimates_and_nothing_is_lost() -> None:
    taken, left_out = plan.order(plan.SECTIONS, plan.BUDGET)
    assert plan.BUDGET <= 1800
    assert plan.SETUP_SECONDS + sum(each.seconds for each in taken) <= plan.BUDGET
    assert {each.name for each in taken} | {each.name for each in left_out} == {
        each.name for each in plan.SECTIONS
    }
    values = [each.value / each.seconds for each in taken]
    assert values == sorted(values, reverse=True)
    unrun, later = plan.order(UNRUN, plan.BUDGET)
    assert {each.name for each in unrun} | {each.name for each in later} == {each.name for each in UNRUN}
    assert plan.SETUP_SECONDS + sum(each.seconds for each in unrun) <= plan.BUDGET


def test_a_smaller_budget_keeps_what_is_worth_most_a_second() -> None:
    taken, left_out = plan.order(plan.SECTIONS, plan.SETUP_SECONDS + 300)
    assert taken
    assert left_out
    least = min(each.value / each.seconds for each in taken)
    fitting = [each for each in left_out if each.seconds <= 300 - sum(one.seconds for one in taken)]
    assert fitting == []
    assert least >= min(each.value / each.seconds for each in left_out)


def test_sections_are_whole(tmp_path: Path) -> None:
    names = [each.name for each in plan.SECTIONS]
    assert len(set(names)) == len(names)
    for each in plan.SECTIONS:
        assert each.predicts, f"{each.name}: a prediction comes before the measurement"
        assert each.proof
        assert 1 <= each.value <= 10
        assert each.card_gib < 139
        assert each.host_gib < 126
        assert 0 < each.limit(1000) <= 1000


def test_commands_name_scripts_sections_and_engines_that_exist() -> None:
    known = subprocess.run(
        [sys.executable, GPU / "run.py", "--help"], capture_output=True, text=True, check=True, cwd=PROJECT
    ).stdout
    systems = set(re.findall(r"[\w-]+", re.search(r"\{([^}]*)\}", known)[1]))  # type: ignore[index]
    for each in plan.SECTIONS:
        words = each.command.split()
        assert all((PROJECT / word).is_file() for word in words if word.startswith("bench/gpu/"))
        if "bench/gpu/run.py" in words:
            assert each.name in systems | {"pinned"}
            assert words[-1] in systems
        engines = [word for word in words if word.startswith(("engine-", "large-"))]
        assert set(engines) <= set(profiles.ENGINES)
        assert {proof.get("name") for proof in each.proof} - {None} <= set(engines)


def test_kept_results_have_what_and_when_and_those_with_a_note_prove_nothing() -> None:
    lines = [json.loads(line) for line in plan.RESULTS.read_text().splitlines()]
    assert all(isinstance(line["what"], str) for line in lines)
    assert len(plan.results()) < len(lines)
    fast: dict[str, Any] = {"what": "variant", "name": "engine-fast"}
    assert any(fast.items() <= plan.line_items(line) for line in lines)
    assert not any(fast.items() <= plan.line_items(line) for line in plan.results())
    assert plan.has_run(plan.section("card"), plan.results())


def test_a_section_has_run_when_all_of_its_proofs_are_there() -> None:
    oom = plan.section("oom")
    first, second = ({**proof, "at": "now"} for proof in oom.proof)
    assert not plan.has_run(oom, [first])
    assert plan.has_run(oom, [first, second])


def test_the_document_says_what_has_not_run() -> None:
    document = PROJECT / "docs" / "verified.md"
    text = document.read_text()
    assert text == plan.renewed(text, plan.results()), (
        "run python bench/gpu/plan.py --document docs/verified.md"
    )
    for each in UNRUN:
        assert f"`{each.name}`" in text


@pytest.mark.parametrize(
    "name",
    [
        *profiles.VARIANTS,
        *profiles.ENGINES,
        "shipped-h200",
        "shipped-h200-fast",
        *(f"card-{gib}" for gib in profiles.CARDS),
    ],
)
def test_no_profile_of_the_bench_is_refused_on_the_machine_it_is_for(name: str, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    directory = profiles.write(tmp_path / "profiles", tmp_path / "model")
    machine = host(
        cards=(card(0, "9.0", 143_771 * 1024**2),),
        memory_bytes=126 * GIB,
        # Its torch is the machine's, which lies outside the environment that is looked at.
        installed={"vllm": "0.30.0", "vllm-omni": "0.30.0"},
    )
    assert load_profile(name, directory, machine).runtime == "omni-0.30-cu130"
