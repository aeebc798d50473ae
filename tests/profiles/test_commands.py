"""`framekeeper profile …` from the outside: what it prints, and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from framekeeper.profiles.commands import app
from framekeeper.profiles.nvidia import parse

CONFIGS = Path(__file__).parents[2] / "configs" / "profiles"


def run(*arguments: str, directory: Path = CONFIGS) -> tuple[int, str]:
    options = () if arguments[0] == "schema" else ("--directory", str(directory))
    result = CliRunner().invoke(app, [*arguments, *options])
    return result.exit_code, result.output


def test_list_shows_every_profile_and_where_it_was_verified() -> None:
    code, text = run("list")
    assert code == 0
    for path in CONFIGS.glob("*.yaml"):
        assert path.stem in text
    assert "verified" in text


def test_check_prints_all_faults_of_all_named_profiles_and_exits_2(tmp_path: Path) -> None:
    base = (CONFIGS / "t2v-a14b.yaml").read_text(encoding="utf-8")
    (tmp_path / "one.yaml").write_text(base.replace("compile: off", "compile: regional"), encoding="utf-8")
    (tmp_path / "two.yaml").write_text(base.replace("num_frames: 81", "num_frames: 80"), encoding="utf-8")
    (tmp_path / "fine.yaml").write_text(base, encoding="utf-8")
    code, text = run("check", directory=tmp_path)
    assert code == 2
    assert "offload-with-compile" in text
    assert text.count("frames-4k-plus-1") == 2, "defaults and admits; rungs do not repeat what they inherit"
    assert "fine: fine" in text


def test_check_of_shipped_profiles_is_fine() -> None:
    assert run("check")[0] == 0


def test_show_prints_the_whole_launch_as_yaml_and_json() -> None:
    code, text = run("show", "cpu-tiny")
    assert code == 0
    launch = yaml.safe_load(text)
    assert launch["environment"]["FRAMEKEEPER_DEVICE"] == "cpu"
    assert launch["options"]["device"] == "cpu"
    assert json.loads(run("show", "cpu-tiny", "--json")[1]) == launch


@pytest.mark.parametrize("name", sorted(path.stem for path in CONFIGS.glob("*.yaml")))
def test_show_works_for_every_profile_on_a_machine_without_cards(name: str) -> None:
    code, text = run("show", name)
    assert code == 0, text


def test_show_here_names_variables_that_do_not_reach_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_COMPILE", "0")
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    code, text = run("show", "cpu-tiny", "--here")
    assert code == 0
    assert "TORCH_COMPILE=0: nothing in torch 2.4.1, torch 2.13.0, vllm or vllm-omni reads" in text
    assert "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True: does not reach the worker" in text


def test_wrong_setting_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FRAMEKEEPER_PORT", "many")
    result = CliRunner().invoke(app, ["show"])
    assert result.exit_code == 2
    assert result.output.startswith("FRAMEKEEPER_PORT='many'")


def test_show_of_a_rung_that_is_not_there_exits_2() -> None:
    code, text = run("show", "cpu-tiny", "--rung", "7")
    assert code == 2
    assert "has 1 fallbacks" in text


def test_fit_explains_line_by_line_and_exits_2_where_it_does_not_fit() -> None:
    code, text = run("fit", "h200", "--gpu-memory", "48GiB")
    assert code == 2
    assert "text encoder" in text
    assert "does not fit" in text
    assert run("fit", "rtx4090-24g", "--gpu-memory", "24GiB")[0] == 0
    assert run("fit", "h200", "--gpu-memory", "much")[0] == 2


def test_diff_shows_keys_that_differ_after_extends() -> None:
    code, text = run("diff", "h200", "h100x2")
    assert code == 0
    assert "devices.count: 1 -> 2" in text
    assert "serves" not in text


def test_schema_is_json() -> None:
    code, text = run("schema")
    assert code == 0
    assert "fallbacks" in json.loads(text)["properties"]


def test_missing_directory_and_unknown_profile_exit_2(tmp_path: Path) -> None:
    assert run("list", directory=tmp_path / "nowhere")[0] == 2
    code, text = run("show", "cpu-tinny")
    assert code == 2
    assert "Set: cpu-tiny" in text


def test_cards_are_read_from_nvidia_smi_and_a_lost_card_is_left_out() -> None:
    text = """\
GPU-11111111-2222-3333-4444-555555555555, NVIDIA H200, 9.0, 143771, 580.95.05
GPU-99999999-2222-3333-4444-555555555555, NVIDIA H200, 9.0, [Unknown Error], 580.95.05
GPU-88888888-2222-3333-4444-555555555555, NVIDIA H200, [N/A], 143771, 580.95.05
"""
    cards, driver = parse(text)
    assert [(card.name, card.capability, card.memory_bytes) for card in cards] == [
        ("NVIDIA H200", "9.0", 143_771 * 1024**2)
    ]
    assert driver == "580.95.05"
    assert parse("") == ((), None)
