"""What the rules know about a runtime is what its lock and its description say."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from framekeeper.profiles.installed import installed_versions
from framekeeper.profiles.load import load_profile, profile_names
from framekeeper.profiles.runtimes import RUNTIMES, version_tuple

ROOT = Path(__file__).parents[2]
DESCRIPTIONS = sorted((ROOT / "docker" / "runtimes").glob("*/runtime.toml"))


@pytest.mark.parametrize("path", DESCRIPTIONS, ids=lambda path: path.parent.name)
def test_table_agrees_with_the_description(path: Path) -> None:
    described = tomllib.loads(path.read_text(encoding="utf-8"))
    runtime = RUNTIMES[described["name"]]
    assert runtime.python == described["python"]
    assert version_tuple(runtime.torch) == version_tuple(described["torch"])
    assert (runtime.cuda is None) == (described["device"] == "cpu")
    omni = described["backends"].get("vllm_omni", {})
    assert omni.get("vllm", runtime.vllm) == runtime.vllm
    assert omni.get("vllm_omni", runtime.vllm_omni) == runtime.vllm_omni


def test_shipped_profiles_use_known_runtimes() -> None:
    configs = ROOT / "configs" / "profiles"
    assert {load_profile(name, configs).runtime for name in profile_names(configs)} <= set(RUNTIMES)


def test_version_is_compared_without_its_local_part() -> None:
    assert version_tuple("2.4.1+cu124") == (2, 4, 1)
    assert version_tuple("0.30.0.dev3") == (0, 30, 0)


def test_versions_are_read_from_an_environment(tmp_path: Path) -> None:
    packages = tmp_path / "lib" / "python3.12" / "site-packages"
    for name, version in (("vllm_omni", "0.30.0"), ("torch", "2.13.0+cu130"), ("numpy", "2.3.0")):
        metadata = packages / f"{name}-{version}.dist-info"
        metadata.mkdir(parents=True)
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    assert installed_versions(tmp_path) == {"vllm-omni": "0.30.0", "torch": "2.13.0+cu130"}
    assert installed_versions(tmp_path / "nowhere") == {}
