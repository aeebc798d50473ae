from pathlib import Path

import pytest

from framekeeper.settings import PREFIX, Settings, SettingsError, load


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in list(os.environ):
        if name.startswith(PREFIX):
            monkeypatch.delenv(name)


def test_defaults_serve_one_machine_on_loopback() -> None:
    settings = load()
    assert (settings.host, settings.port, settings.supervisor_port) == ("127.0.0.1", 8000, 8001)
    assert settings.database_url == ""
    assert settings.media_directory == Path("var/media").absolute()


def test_the_environment_overrides(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FRAMEKEEPER_PORT", "9000")
    monkeypatch.setenv("FRAMEKEEPER_VAR", str(tmp_path))
    monkeypatch.setenv("FRAMEKEEPER_MEDIA", str(tmp_path / "elsewhere"))
    settings = load()
    assert settings.port == 9000
    assert settings.run_directory == tmp_path / "run"
    assert settings.media_directory == tmp_path / "elsewhere"


def test_every_wrong_setting_is_named_with_value_and_meaning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FRAMEKEEPER_PORT", "eighty")
    monkeypatch.setenv("FRAMEKEEPER_GATEWAY_PROCESSES", "0")
    monkeypatch.setenv("FRAMEKEEPER_HOST_ID", "two words")
    with pytest.raises(SettingsError) as caught:
        load()
    lines = str(caught.value).splitlines()
    assert len(lines) == 3
    for name, value in (("PORT", "eighty"), ("GATEWAY_PROCESSES", "0"), ("HOST_ID", "two words")):
        assert any(line.startswith(f"FRAMEKEEPER_{name}={value!r}: ") for line in lines)
    assert "Port the gateway listens on." in str(caught.value)


def test_settings_do_not_change() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Settings().port = 1


def test_every_setting_is_described() -> None:
    assert all(field.description for field in Settings.model_fields.values())
