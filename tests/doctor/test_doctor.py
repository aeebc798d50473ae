"""`framekeeper doctor` as a command, the compile caches, and the document of its checks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from framekeeper.doctor.caches import clear_caches, damaged
from framekeeper.doctor.commands import doctor_record
from framekeeper.doctor.document import document
from framekeeper.doctor.environment import names_read
from framekeeper.settings import Settings
from test_cli import framekeeper

HOSTS = Path(__file__).parent / "hosts"


def recorded(name: str, profile: str, *options: str) -> tuple[int, str]:
    finished = framekeeper("doctor", profile, "--readings", str(HOSTS / f"{name}.json"), *options)
    assert "Traceback" not in finished.stderr
    return finished.returncode, finished.stdout


def test_exit_status_is_1_for_what_is_fatal_and_with_strict_for_a_warning() -> None:
    assert recorded("healthy-h200", "h200")[0] == 0
    assert recorded("mig", "h200")[0] == 0
    assert recorded("mig", "h200", "--strict")[0] == 1
    code, text = recorded("ecc", "h200")
    assert code == 1
    assert "1 fatal" in text.splitlines()[-2]
    assert text.splitlines()[-1].startswith("Next: mend what is fatal")


def test_json_holds_findings_and_readings() -> None:
    code, text = recorded("ecc", "h200", "--json")
    record = json.loads(text)
    assert code == 1
    assert (record["findings"][0]["check"], record["findings"][0]["severity"]) == ("ecc", "fatal")
    assert record["readings"]["cards"]["status"] == 0


@pytest.mark.parametrize("arguments", [["no-such-profile"], ["h200", "--readings", "/no/such/file"]])
def test_a_wrong_configuration_is_exit_status_2(arguments: list[str]) -> None:
    finished = framekeeper("doctor", *arguments)
    assert finished.returncode == 2
    assert "no-such-profile" in finished.stderr or "/no/such/file" in finished.stderr


def test_this_host_is_examined_fast_without_any_secret_in_the_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_planted")
    monkeypatch.setenv("VLLM_API_KEY", "planted-too")
    monkeypatch.setenv("TORCH_COMPILE", "0")
    text = json.dumps(doctor_record(Settings(var=tmp_path), "cpu-tiny", fast=True))
    assert "planted" not in text
    assert "TORCH_COMPILE=0" in text
    assert json.loads(text)["readings"]["probes"] == []


def test_clearing_removes_our_compile_caches_and_nothing_else(tmp_path: Path) -> None:
    for name in ("omni-0.30-cpu/cpu/inductor", "huggingface/hub", "somebody"):
        (tmp_path / name).mkdir(parents=True)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "omni-0.30-cu130").symlink_to(elsewhere)
    assert clear_caches(tmp_path) == [tmp_path / "omni-0.30-cpu"]
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"huggingface", "somebody", "elsewhere", "omni-0.30-cu130"}


def test_the_command_clears_the_caches_of_its_settings(tmp_path: Path) -> None:
    cache = tmp_path / "cache" / "omni-0.30-cpu"
    cache.mkdir(parents=True)
    finished = framekeeper("doctor", "--clear-caches", VAR=str(tmp_path))
    assert (finished.returncode, cache.exists()) == (0, False)
    assert str(cache) in finished.stdout


def test_damaged_files_of_the_caches_are_named_and_whole_ones_are_not(tmp_path: Path) -> None:
    cache = tmp_path / "omni-0.30-cpu" / "inductor"
    cache.mkdir(parents=True)
    (cache / "whole.so").write_bytes(b"\x7fELF and more")
    (cache / "whole.json").write_text("{}")
    (cache / "__init__.py").touch()
    assert damaged(tmp_path) == ()
    (cache / "zeros.so").write_bytes(bytes(64))
    (cache / "empty.py").touch()
    (cache / "half.json").write_text('{"a": ')
    assert sorted(sentence.removeprefix(f"{cache}/") for sentence in damaged(tmp_path)) == [
        "empty.py is empty",
        "half.json is no whole JSON",
        "zeros.so does not begin as a compiled file does",
    ]


def test_a_variable_is_read_where_a_library_names_it_whole(tmp_path: Path) -> None:
    library = tmp_path / "lib" / "python3.11" / "site-packages" / "torch"
    library.mkdir(parents=True)
    (library / "config.py").write_text('os.environ.get("TORCH_COMPILE_DISABLE")\n')
    assert names_read(tmp_path, {"TORCH_COMPILE", "TORCH_COMPILE_DISABLE"}) == {
        "TORCH_COMPILE_DISABLE": "torch"
    }
    assert names_read(tmp_path / "absent", {"TORCH_COMPILE"}) is None


def test_the_document_names_every_check() -> None:
    path = Path(__file__).parents[2] / "docs" / "doctor.md"
    assert document(path.read_text(encoding="utf-8")) == path.read_text(encoding="utf-8"), (
        "run: python -m framekeeper.doctor.document docs/doctor.md"
    )
