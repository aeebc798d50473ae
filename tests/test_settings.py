import re
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict

from framekeeper.settings import PREFIX, Settings, SettingsError, load, misspelt


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


@pytest.mark.parametrize(
    "name",
    ["HOST", "OPERATION_HOST", "SUPERVISOR_HOST", "VAR", "PROFILE", "PROFILES", "RUNTIMES", "DEVICE_LOCKS"],
)
def test_nothing_is_neither_the_working_directory_nor_every_address(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(f"FRAMEKEEPER_{name}", "")
    with pytest.raises(SettingsError, match=rf"^FRAMEKEEPER_{name}='': is empty: set a value, or unset"):
        load()


@pytest.mark.parametrize(
    "name", ["MEDIA", "MODEL", "ENGINE_PYTHON", "DATABASE_PASSWORD_FILE", "WEBHOOK_SECRET_FILE"]
)
def test_what_may_be_left_out_may_be_empty(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(f"FRAMEKEEPER_{name}", "")
    settings = load()
    assert getattr(settings, name.lower()) is None
    assert settings.media_directory == Path("var/media").absolute()


@pytest.mark.parametrize("name", ["STALE_SECONDS", "DRAIN_SECONDS", "RETENTION_DAYS", "SYNC_SECONDS"])
@pytest.mark.parametrize("value", ["inf", "nan"])
def test_a_time_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(f"FRAMEKEEPER_{name}", value)
    with pytest.raises(SettingsError, match=f"^FRAMEKEEPER_{name}='{value}': "):
        load()


def test_settings_do_not_change() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Settings().port = 1


def test_every_setting_is_described() -> None:
    assert all(field.description for field in Settings.model_fields.values())


@pytest.fixture
def password_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    path = tmp_path / "password"
    monkeypatch.setenv("FRAMEKEEPER_DATABASE_PASSWORD_FILE", str(path))
    monkeypatch.setenv("FRAMEKEEPER_DATABASE_URL", "postgresql://me@db:5433/jobs?sslmode=require")
    return path


@pytest.mark.parametrize(
    ("url", "whole"),
    [
        ("postgresql://me@db:5433/jobs?sslmode=require", "postgresql://me:pass@db:5433/jobs?sslmode=require"),
        ("postgres://me@db/jobs", "postgres://me:pass@db/jobs"),
        ("postgresql://me@[::1]:5432/jobs", "postgresql://me:pass@[::1]:5432/jobs"),
        ("postgresql://me@/jobs?host=/run/pg", "postgresql://me:pass@/jobs?host=/run/pg"),
        ("", ""),
    ],
)
def test_the_password_of_the_file_goes_into_the_url(
    monkeypatch: pytest.MonkeyPatch, password_file: Path, url: str, whole: str
) -> None:
    password_file.write_text("pass\n")
    monkeypatch.setenv("FRAMEKEEPER_DATABASE_URL", url)
    assert load().database_url == whole


@pytest.mark.parametrize("password", ["p@ss:/w?rd#%", "ä b", " spaces ", "43-letters_of_base64"])
def test_libpq_reads_the_very_password_back(password_file: Path, password: str) -> None:
    password_file.write_text(password + "\n", encoding="utf-8")
    read = conninfo_to_dict(load().database_url)
    assert read["password"] == password
    assert (read["user"], read["host"], read["port"], read["dbname"]) == ("me", "db", "5433", "jobs")


def refusal() -> str:
    with pytest.raises(SettingsError) as caught:
        load()
    return str(caught.value)


def test_a_password_file_that_cannot_be_used_is_named_with_the_reason(password_file: Path) -> None:
    said = refusal()
    assert said.startswith(f"FRAMEKEEPER_DATABASE_PASSWORD_FILE={password_file}: it cannot be read")
    assert "No such file" in said
    password_file.write_text("\n")
    assert "it is empty" in refusal()
    password_file.write_bytes(b"\xff\xfe")
    assert "not UTF-8" in refusal()


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("postgresql://me:letmein@db/jobs", "has a password already"),
        ("mysql://me@db/jobs", "is not a PostgreSQL URL"),
    ],
)
def test_a_url_with_no_place_for_the_password_is_refused_without_showing_either(
    monkeypatch: pytest.MonkeyPatch, password_file: Path, url: str, reason: str
) -> None:
    password_file.write_text("hidden-in-a-file")
    monkeypatch.setenv("FRAMEKEEPER_DATABASE_URL", url)
    said = refusal()
    assert reason in said
    assert "hidden-in-a-file" not in said
    assert "letmein" not in said


def test_the_webhook_secret_is_read_from_its_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    secret = "whsec_" + "A" * 40
    path = tmp_path / "secret"
    path.write_text(secret + "\n")
    monkeypatch.setenv("FRAMEKEEPER_WEBHOOK_SECRET_FILE", str(path))
    assert load().webhook_secret == secret
    monkeypatch.setenv("FRAMEKEEPER_WEBHOOK_SECRET", secret)
    with pytest.raises(SettingsError, match="leave one of the two out"):
        load()


def test_every_secret_file_that_cannot_be_used_is_named_and_none_shown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "secret"
    path.write_text("hidden-in-a-file")
    monkeypatch.setenv("FRAMEKEEPER_WEBHOOK_SECRET_FILE", str(path))
    monkeypatch.setenv("FRAMEKEEPER_DATABASE_URL", "postgresql://db/jobs")
    monkeypatch.setenv("FRAMEKEEPER_DATABASE_PASSWORD_FILE", str(tmp_path / "none"))
    with pytest.raises(SettingsError) as caught:
        load()
    password, webhook = str(caught.value).splitlines()
    assert password.startswith(f"FRAMEKEEPER_DATABASE_PASSWORD_FILE={tmp_path / 'none'}: it cannot be read")
    assert webhook.startswith(f"FRAMEKEEPER_WEBHOOK_SECRET_FILE={path}: its content must be whsec_")
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize("name", ["PROFIL", "PORTS", "DATABASE_URI", "DRAIN_SECOND", "RETENTION_DAY"])
def test_a_misspelt_setting_is_refused_with_the_right_name(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"FRAMEKEEPER_{name}", "x")
    monkeypatch.setenv("FRAMEKEEPER_PORT", "eighty")
    with pytest.raises(SettingsError) as caught:
        load()
    first, second = str(caught.value).splitlines()
    assert first.startswith(f"FRAMEKEEPER_{name}: there is no such setting. Rename it to FRAMEKEEPER_")
    assert second.startswith("FRAMEKEEPER_PORT='eighty'")


def test_variables_of_compose_and_the_images_are_not_taken_for_misspelt_settings() -> None:
    project = Path(__file__).parent.parent
    files = [
        *project.glob("compose*.yaml"),
        project / ".env.example",
        *(project / "docker").glob("*.Dockerfile"),
    ]
    files += [*(project / "server" / "framekeeper").rglob("*.py"), *(project / "healthchecks").glob("*.py")]
    names = {
        name for file in files for name in re.findall(r"FRAMEKEEPER_[A-Z_]+[A-Z]", file.read_text("utf-8"))
    }
    assert len(names) > 40
    assert misspelt(names) == []
