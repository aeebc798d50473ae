"""A profile is read whole, and everything that is wrong with it is said at once, with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from framekeeper.profiles.faults import Fault, ProfileError
from framekeeper.profiles.load import examine, load_profile, profile_names

CONFIGS = Path(__file__).parents[2] / "configs" / "profiles"

GOOD = """\
serves: wan2.2-t2v-a14b
runtime: omni-0.30-cu130
model: var/models/x-a14b
defaults:
  size: 832x480
  num_frames: 81
  num_inference_steps: 40
  guidance_scale: 4.0
  guidance_scale_2: 3.0
  boundary_ratio: 0.875
admits: {size: 832x480, num_frames: 81}
warm_up: {deadline_seconds: 60}
deadlines: {load_seconds: 60, step_seconds: 60, decode_seconds: 60, job_seconds: 60}
"""


def faults_of(directory: Path, text: str) -> list[Fault]:
    (directory / "wrong.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(ProfileError) as caught:
        load_profile("wrong", directory)
    return list(caught.value.faults)


@pytest.mark.parametrize("name", profile_names(CONFIGS))
def test_shipped_profile_is_legal_with_all_its_rungs(name: str) -> None:
    profile, warnings = examine(name, CONFIGS)
    assert profile.name == name
    assert warnings == []


def test_all_faults_are_said_at_once_with_their_lines(tmp_path: Path) -> None:
    text = GOOD + "ofload: layerwise\ncompile: maybe\ndevices: {count: two}\n"
    text = text.replace("size: 832x480\n", "size: 832by480\n").replace("serves: wan2.2-t2v-a14b\n", "")
    found = {fault.key: fault for fault in faults_of(tmp_path, text)}
    assert set(found) == {"serves", "ofload", "compile", "devices.count", "defaults.size"}
    assert found["ofload"].advice == "offload instead"
    assert found["ofload"].where.endswith("wrong.yaml:13")
    assert found["defaults.size"].where.endswith("wrong.yaml:4")
    assert "'off', 'regional' or 'full'" in found["compile"].advice


def test_rule_fault_names_line_key_value_reason_advice_and_evidence(tmp_path: Path) -> None:
    (fault,) = faults_of(tmp_path, GOOD + "offload: layerwise\ncompile: regional\n")
    text = str(fault)
    assert "wrong.yaml:15: compile: regional [offload-with-compile]:" in text
    assert "Set: compile: off" in text
    assert "https://github.com/vllm-project/vllm-omni/issues/2992" in text


def test_off_is_a_word_and_not_false(tmp_path: Path) -> None:
    (tmp_path / "fine.yaml").write_text(GOOD + "compile: off\n", encoding="utf-8")
    assert load_profile("fine", tmp_path).compile == "off"


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("serves: [", "is not YAML"),
        ("- a\n- b\n", "is not a mapping"),
        ("", "is not a mapping"),
        (GOOD + "serves: again\n", "is there twice"),
        ("extends: nothing-here\n", "names no profile"),
        ("extends: wrong\n", "goes in a circle"),
        ("serves: &a [*a]\n", "holds itself"),
        ("serves: 2026-13-01\n", "cannot be read (month must be in 1..12)"),
        ("serves: !!int ten\n", "cannot be read"),
        ("serves: !!timestamp ten\n", "cannot be read"),
        (GOOD + "name: other\n", "is not the file's name"),
    ],
)
def test_file_that_is_no_profile_is_refused_with_a_reason(tmp_path: Path, text: str, word: str) -> None:
    assert any(word in fault.reason for fault in faults_of(tmp_path, text))


def test_variation_has_its_own_name_also_where_its_base_says_one(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(GOOD + "name: base\n", encoding="utf-8")
    (tmp_path / "child.yaml").write_text("extends: base\n", encoding="utf-8")
    assert [load_profile(name, tmp_path).name for name in ("base", "child")] == ["base", "child"]


def test_unknown_name_is_answered_with_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "h200.yaml").write_text(GOOD, encoding="utf-8")
    with pytest.raises(ProfileError, match=r"does not exist. Set: h200\."):
        load_profile("h20", tmp_path)


def test_variation_inherits_all_but_claims_and_accepted_risks(tmp_path: Path) -> None:
    risk = "accept_risk: {offload-with-compile: measured on an H200}\nverified: hardware\n"
    text = GOOD + risk + "offload: layerwise\ncompile: regional\n"
    (tmp_path / "base.yaml").write_text(text, encoding="utf-8")
    (tmp_path / "child.yaml").write_text(
        "extends: base\ncompile: off\ndefaults: {fps: 24}\n", encoding="utf-8"
    )
    assert load_profile("base", tmp_path).verified == "hardware"
    child = load_profile("child", tmp_path)
    assert (child.verified, child.accept_risk) == ("no", {})
    assert (child.defaults.fps, child.defaults.num_frames, child.offload) == (24, 81, "layerwise")


def test_inherited_fault_points_into_the_file_that_has_it(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(GOOD + "offload: layerwise\n", encoding="utf-8")
    (fault,) = faults_of(tmp_path, "extends: base\nallocator: {expandable_segments: true}\n")
    assert fault.where.endswith("wrong.yaml:2")
    (tmp_path / "base.yaml").write_text(GOOD.replace("81", "80"), encoding="utf-8")
    assert {f.where.rsplit("/", 1)[1] for f in faults_of(tmp_path, "extends: base\n")} == {
        "base.yaml:6",
        "base.yaml:11",
    }


def test_illegal_rung_is_refused_at_its_line(tmp_path: Path) -> None:
    rungs = """\
compile: regional
fallbacks:
  - name: streamed
    change: {offload: layerwise}
  - name: other
    change: {serves: something-else, compile: off}
"""
    found = faults_of(tmp_path, GOOD + rungs)
    assert [fault.rule for fault in found] == ["offload-with-compile", ""]
    assert found[0].key == "fallbacks.0 -> compile"
    assert found[0].where.endswith("wrong.yaml:17")
    assert found[1].key == "fallbacks.1.change.serves"


def test_rung_with_an_unknown_key_is_refused(tmp_path: Path) -> None:
    rungs = "fallbacks:\n  - name: eager\n    change: {compil: off}\n"
    (fault,) = faults_of(tmp_path, GOOD + rungs)
    assert fault.key == "fallbacks.0.change.compil"
    assert fault.advice == "compile instead"


def test_an_unreadable_key_does_not_hide_what_the_rules_refuse(tmp_path: Path) -> None:
    text = "extends: cpu-tiny\ncompile: full\noffload: layerwise\nguidence: 3\noffload_pin_memory: false\n"
    (tmp_path / "cpu-tiny.yaml").write_text((CONFIGS / "cpu-tiny.yaml").read_text())
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(ProfileError) as refusal:
        load_profile("mine", tmp_path)
    rules = [(fault.key, fault.rule) for fault in refusal.value.faults]
    assert ("guidence", "") in rules
    assert ("compile", "offload-with-full-compile") in rules
    assert len(rules) == len({rule for _, rule in rules}), (
        "a rung that only inherits a fault does not repeat it"
    )
