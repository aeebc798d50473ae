"""Hosts recorded as data, sick and healthy: what the doctor says about each, and what it says not.

A file holds what `framekeeper doctor --json` reads of a host, the profile it is judged for, and every finding
that is fatal or a warning.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from framekeeper.doctor.document import known
from framekeeper.doctor.examine import Examination, examine_host
from framekeeper.doctor.finding import Finding
from framekeeper.doctor.readings import Readings
from framekeeper.settings import Settings

PROFILES = Path(__file__).parents[2] / "configs" / "profiles"
HOSTS = sorted((Path(__file__).parent / "hosts").glob("*.json"))


@pytest.fixture(autouse=True)
def outside_the_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Where no lock is at hand, versions are judged by the rules alone.
    monkeypatch.chdir(tmp_path)


def examined(host: dict[str, Any]) -> Examination:
    settings = Settings(profiles=PROFILES)
    return examine_host(settings, host["profile"], recorded=Readings.model_validate(host["readings"]))


def text(finding: Finding) -> str:
    return f"{finding.seen} {finding.why} {finding.advice}"


@pytest.mark.parametrize("path", HOSTS, ids=lambda path: path.stem)
def test_a_host_has_exactly_the_faults_that_it_was_recorded_for(path: Path) -> None:
    host = json.loads(path.read_text(encoding="utf-8"))
    found = [each for each in examined(host).findings if each.severity in ("fatal", "warn")]
    wanted = Counter((each["check"], each["severity"]) for each in host["expected"])
    seen = Counter((each.check, each.severity) for each in found)
    # A rule speaks for every rung that breaks it, and a few causes have several findings: once is enough.
    assert set(seen) == set(wanted), [str(each) for each in found]
    assert all(seen[key] >= count for key, count in wanted.items())
    for each in host["expected"]:
        of_check = [text(finding) for finding in found if finding.check == each["check"]]
        assert any(each["says"] in words for words in of_check), of_check


@pytest.mark.parametrize("path", HOSTS, ids=lambda path: path.stem)
def test_whatever_is_wrong_comes_with_reason_and_advice(path: Path) -> None:
    for finding in examined(json.loads(path.read_text(encoding="utf-8"))).findings:
        assert finding.seen
        if finding.severity != "ok":
            assert finding.why, finding
            assert finding.advice, finding


def test_there_are_sick_hosts_enough() -> None:
    assert len([path for path in HOSTS if not path.stem.startswith("healthy")]) >= 15


def test_a_record_can_be_judged_again() -> None:
    host = json.loads((HOSTS[0].parent / "ecc.json").read_text(encoding="utf-8"))
    record = json.loads(json.dumps(examined(host).record()))
    again = examined({"profile": host["profile"], "readings": record["readings"]})
    assert [each.record() for each in again.findings] == record["findings"]


def test_wsl_and_docker_desktop_are_noted_and_not_held_against_a_profile_made_for_them() -> None:
    host = json.loads((HOSTS[0].parent / "wsl2-pinned.json").read_text(encoding="utf-8"))
    findings = examined({**host, "profile": "wsl2-24g"}).findings
    assert [each.check for each in findings if each.check == "wsl"] == ["wsl"]
    assert not [str(each) for each in findings if each.severity in ("fatal", "warn")]


def test_a_kernel_log_that_cannot_be_read_is_said() -> None:
    host = json.loads((HOSTS[0].parent / "healthy-h200.json").read_text(encoding="utf-8"))
    readings = {**host["readings"], "kernel_log": None}
    notes = [each for each in examined({**host, "readings": readings}).findings if each.check == "xid"]
    assert [each.severity for each in notes] == ["note"]


def test_every_check_is_in_the_document() -> None:
    found = {
        each.check
        for path in HOSTS
        for each in examined(json.loads(path.read_text(encoding="utf-8"))).findings
    }
    assert {check for check in found if not known(check)} == set()
