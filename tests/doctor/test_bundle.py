"""The support bundle: secrets are planted everywhere, and none of them is found in any of its files."""

from __future__ import annotations

import json
import logging
import zipfile
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from typing import Any

import psycopg
import pytest
import structlog
import yaml
from psycopg.types.json import Jsonb
from typer.testing import CliRunner

from framekeeper import logs
from framekeeper.cli import app
from framekeeper.doctor.bundle import write
from framekeeper.doctor.commands import doctor
from framekeeper.doctor.redaction import HIDDEN, Redactor, shown_environment
from framekeeper.settings import Settings, load
from system import fault_profile

PROMPT = "a secret castle above the river Quellbach"
SHORT = "mycat"
SECRETS = {
    "PGPASSWORD": "pg-Hunter2-plain",
    "HF_TOKEN": "hf_QhZkTlPvWmYxRsNd1234",
    "OPENAI_API_KEY": "sk-proj-4f9d8e7c6b5a4d3c2b1a",
    "AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE",
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    "FRAMEKEEPER_WEBHOOK_SECRET": "whsec_ZmlmdHktdGhyZWUtYml0cy1hcmUtbm90LWVub3VnaCE=",
    "FRAMEKEEPER_API_KEY": "fk-live-0123456789abcdef",
    "S3_URL": "https://bucket-user:bucket-Passw0rd@s3.example.com/b",
    "GREETING": "a value of a name that nobody has heard of",
}
DATABASE_PASSWORD = "db-Sw0rdfish-77"
NEVER = [
    *(value for name, value in SECRETS.items() if name != "S3_URL"),
    "bucket-Passw0rd",
    DATABASE_PASSWORD,
    PROMPT,
    SHORT,
    "Quellbach",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0",
    "MIIEvQIBADANBgkqhkiG9w0BAQ",
    "only-in-a-log-4711",
]
LINES = f"""\
database postgresql://framekeeper:{DATABASE_PASSWORD}@db:5432/framekeeper is away
Authorization: Bearer eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl
connecting with password=only-in-a-log-4711 and sslmode=require
{{"event": "job started", "prompt": "{SHORT}", "video": "video_1", "api": {{"authorization": "x {SHORT}"}}}}
{{"event": "request body: {{'prompt': '{SHORT}'}}", "level": "info"}}
INFO engine.py:17 Processing prompt: {SHORT} on the {SHORT} mat, steps 4
INFO tokenizing {PROMPT} with 512 tokens
GET https://s3.example.com/v.mp4?X-Amz-Signature=only-in-a-log-4711&part=1 200
-----BEGIN PRIVATE KEY-----
MIIEvQIBADANBgkqhkiG9w0BAQ
-----END PRIVATE KEY-----
{SECRETS["OPENAI_API_KEY"]} {SECRETS["AWS_SECRET_ACCESS_KEY"]} {SECRETS["HF_TOKEN"]}
torch.AcceleratorError: CUDA error: an illegal memory access was encountered
"""


@pytest.fixture
def settings(tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> Settings:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    profile = fault_profile(tmp_path / "profiles", [])
    # A socket's server takes any password; what matters is that one stands in the URL.
    url = postgres_url + ("&" if "?" in postgres_url else "?") + f"password={DATABASE_PASSWORD}"
    for name, value in {
        "DATABASE_URL": url,
        "VAR": str(tmp_path / "var"),
        "PROFILE": str(profile),
        "RUNTIMES": str(tmp_path / "runtimes"),
    }.items():
        monkeypatch.setenv(f"FRAMEKEEPER_{name}", value)
    log = tmp_path / "var" / "log"
    log.mkdir(parents=True)
    for name in ("supervisor.log", "gateway.log", "engine-0.log", "engine-0.log.1"):
        (log / name).write_text(LINES)
    return load()


def plant(url: str) -> None:
    """A job with a prompt, and an incident that quotes it and a key."""
    record = {
        "cause": "an illegal memory access",
        "excerpt": LINES.splitlines(),
        "line": f"prompt='{SHORT}'",
        "stacks": f"token={SECRETS['HF_TOKEN']}",
    }
    with psycopg.connect(url) as connection:
        connection.execute(
            "INSERT INTO videos (id, model, queue, request, steps) VALUES ('video_1', 'm', 'm', %s, 4)",
            [Jsonb({"prompt": PROMPT, "negative_prompt": "only-in-a-log-4711"})],
        )
        connection.execute(
            """
            INSERT INTO incidents (id, at, host, engine_id, profile, rung, phase, signature, record)
            VALUES ('incident_1', %s, 'h', 'h/0', 'p', 0, 'denoising', 'cuda_illegal_access', %s)
            """,
            [datetime.now(UTC), Jsonb(record)],
        )


def parts(path: Path) -> dict[str, str]:
    with zipfile.ZipFile(path) as bundle:
        return {name: bundle.read(name).decode() for name in bundle.namelist()}


def test_no_planted_secret_is_in_any_file_of_the_bundle(settings: Settings, tmp_path: Path) -> None:
    plant(settings.database_url)
    written = write(tmp_path / "out.zip", settings, settings.profile, fast=True)
    files = parts(tmp_path / "out.zip")
    assert sorted(files) == sorted(written)
    found = [(name, secret) for name, text in files.items() for secret in NEVER if secret in text]
    assert found == []
    assert (tmp_path / "out.zip").stat().st_mode & 0o077 == 0


def test_the_bundle_holds_what_a_maintainer_asks_for(settings: Settings, tmp_path: Path) -> None:
    plant(settings.database_url)
    write(tmp_path / "out.zip", settings, settings.profile, fast=True)
    files = parts(tmp_path / "out.zip")
    loaded: dict[str, Any] = {name: json.loads(text) for name, text in files.items() if ".json" in name}
    assert loaded["versions.json"]["framekeeper"]
    assert loaded["doctor.json"]["findings"]
    assert loaded["launch.json"]["environment"]["FRAMEKEEPER_DEVICE"] == "cpu"
    assert loaded["settings.json"]["max_attempts"] == 3
    assert loaded["environment.json"]["FRAMEKEEPER_VAR"] == str(settings.var)
    assert loaded["environment.json"]["HF_TOKEN"] is None
    assert loaded["environment.json"]["GREETING"] is None
    assert [row["signature"] for row in loaded["incidents.json"]] == ["cuda_illegal_access"]
    assert loaded["engines.json"] == []
    assert yaml.safe_load(files["profile.yaml"])["backend"] == "fault"
    assert "logs/log-engine-0.log.1" in files
    assert "illegal memory access was encountered" in files["logs/log-supervisor.log"]
    assert "sslmode=require" in files["logs/log-supervisor.log"]
    assert "video_1" in files["logs/log-supervisor.log"]


@pytest.mark.slow
def test_without_database_and_profile_the_other_parts_are_there_and_say_so(
    settings: Settings, tmp_path: Path
) -> None:
    gone = settings.model_copy(
        update={"database_url": f"postgresql://x:{DATABASE_PASSWORD}@127.0.0.1:1/gone", "profile": "nothing"}
    )
    write(tmp_path / "out.zip", gone, gone.profile, fast=True)
    files = parts(tmp_path / "out.zip")
    assert "does not answer" in json.loads(files["incidents.json"])["not available"]
    assert "does not exist" in json.loads(files["launch.json"])["not available"]
    assert "does not exist" in files["profile.yaml"]
    assert json.loads(files["environment.json"])
    assert not any(DATABASE_PASSWORD in text for text in files.values())


def test_a_log_that_this_version_writes_with_prompts_on_loses_them_in_the_bundle(
    settings: Settings, tmp_path: Path
) -> None:
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    try:
        for number, form in enumerate(("human", "json")):
            stream = StringIO()
            chosen = settings.model_copy(update={"log_prompts": True, "log_format": form})
            logs.configure(chosen, "gateway", stream)
            structlog.get_logger().info("accepted", prompt=SHORT, negative_prompt=f"{SHORT} and more")
            structlog.get_logger().info("accepted", request={"prompt": f"the {SHORT}"})
            assert SHORT in stream.getvalue()
            (settings.var / "log" / f"{number}.log").write_text(stream.getvalue())
    finally:
        root.handlers = handlers
        root.setLevel(level)
        structlog.reset_defaults()
    write(tmp_path / "out.zip", settings, settings.profile, fast=True)
    files = parts(tmp_path / "out.zip")
    assert "accepted" in files["logs/log-0.log"]
    assert not any(SHORT in text for text in files.values())


def test_only_the_end_of_a_long_log_is_in_it(settings: Settings, tmp_path: Path) -> None:
    (settings.var / "log" / "supervisor.log").write_text("first\n" + "x" * 99 + "\n" * 2_000_000 + "last\n")
    write(tmp_path / "out.zip", settings, settings.profile, fast=True)
    text = parts(tmp_path / "out.zip")["logs/log-supervisor.log"]
    assert len(text) <= 512 * 1024
    assert text.endswith("last\n")


def test_the_command_writes_the_file_and_names_its_parts(settings: Settings, tmp_path: Path) -> None:
    if not any(command.name == "doctor" for command in app.registered_commands):
        app.command("doctor")(doctor)
    answer = CliRunner().invoke(app, ["doctor", "--fast", "--bundle", str(tmp_path / "b.zip")])
    assert answer.exit_code == 0, answer.output
    assert "incidents.json" in answer.output
    missing = CliRunner().invoke(app, ["doctor", "--fast", "--bundle", str(tmp_path / "no" / "b.zip")])
    assert missing.exit_code == 1
    assert "cannot be written (No such file or directory)" in missing.output


@pytest.mark.parametrize(
    "text",
    [
        "loaded 512 tokens with tokenizer: t5 in 3 s",
        "num_tokens: 512, max_tokens=77",
        "profile cpu-tiny: compile: off",
        "skip_connections_of_blocks, pkg_resources_of_something, hf_hub_download_of_files",
        "https://github.com/vllm-project/vllm-omni/issues/5412",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 640.00 MiB.",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert Redactor.of({"HF_TOKEN": "hf_QhZkTlPvWmYxRsNd1234"}).text(text) == text


def test_only_listed_variables_show_their_values() -> None:
    shown = shown_environment(
        {
            "FRAMEKEEPER_PORT": "8000",
            "FRAMEKEEPER_DATABASE_URL": "postgresql://u:password@h/d",
            "CUDA_VISIBLE_DEVICES": "0",
            "MY_SETTING": "x",
            "VLLM_API_KEY": "abcdefgh",
            "PATH": "/bin:/a?token=abcdefgh",
        },
        Redactor(),
    )
    assert {name for name, value in shown.items() if value is None} == {
        "FRAMEKEEPER_DATABASE_URL",
        "MY_SETTING",
        "VLLM_API_KEY",
    }
    assert shown["PATH"] == f"/bin:/a?token={HIDDEN}"
