"""Settings of the gateway and the supervisor, from the environment (`FRAMEKEEPER_…`).

They are validated whole: `load()` raises one SettingsError that names every wrong variable, its value, the
reason and what to set.
"""

from __future__ import annotations

import base64
import os
import re
import socket
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

PREFIX = "FRAMEKEEPER_"


#: Settings that are not repeated in a message.
SECRETS = frozenset({"database_url", "webhook_secret"})


#: Settings that name a file with a secret.
FILES = ("database_password_file", "webhook_secret_file")


#: Variables of compose and the images whose names are close to a setting's and that reach its programs, too.
OTHERS = frozenset({"MODELS", "RUNTIME"})


class SettingsError(Exception):
    """One or more settings are wrong; the message has one line for each."""


class Settings(BaseSettings):
    """All settings, with defaults for one machine. The field's description is its documentation."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="ignore", frozen=True, allow_inf_nan=False)

    host: str = Field("127.0.0.1", description="Address the gateway listens on.")
    port: int = Field(8000, ge=1, le=65535, description="Port the gateway listens on.")
    operation_host: str = Field("127.0.0.1", description="Address of `operation_port`.")
    operation_port: int = Field(
        0,
        ge=0,
        le=65535,
        description="Port for the gateway's metrics and readiness alone, which `port` then answers no more; "
        "0: all on `port`.",
    )
    auth: Literal["off", "on"] = Field(
        "off", description="`on`: every request to /v1 needs an API key (`framekeeper keys create`)."
    )
    allowed_hosts: str = Field(
        "",
        description="Names, with commas, under which a gateway without keys answers beside addresses and "
        "those that no stranger can own (docs/limits.md); `*`: any.",
    )
    publish: str = Field(
        "",
        description="Where a container's port is published, as `127.0.0.1:8000` (compose sets it): says "
        "whether others reach a gateway that listens on 0.0.0.0.",
    )
    gateway_processes: int = Field(2, ge=1, le=64, description="Gateway worker processes.")
    supervisor_host: str = Field("127.0.0.1", description="Address of the supervisor's own port.")
    supervisor_port: int = Field(
        8001, ge=1, le=65535, description="Port of the supervisor: live, startup, metrics."
    )
    database_url: str = Field(
        "", description="PostgreSQL connection URL; `framekeeper run` starts an embedded server and sets it."
    )
    database_password_file: Path | None = Field(
        None, description="File with the database's password, for a URL that has none."
    )
    var: Path = Field(Path("var"), description="Directory for all state that is not set elsewhere.")
    media: Path | None = Field(None, description="Directory of finished videos; default: media under `var`.")
    profile: str = Field("cpu-tiny", description="Name of a file in the profile directory, or a path to one.")
    profiles: Path = Field(Path("configs/profiles"), description="Directory of profiles.")
    model: str | None = Field(None, description="Model directory, overriding the profile's.")
    runtimes: Path = Field(Path(".runtimes"), description="Directory of installed runtimes.")
    engine_python: Path | None = Field(
        None, description="Python of the engine's environment; default: bin/python of the profile's runtime."
    )
    engine_groups: int = Field(1, ge=1, le=64, description="Device groups (engines) this supervisor runs.")
    device_locks: Path = Field(
        Path("/tmp/framekeeper-devices"),  # noqa: S108  holds locks only, and is shared on purpose
        description="Directory of the locks on cards, shared by all engines of a host.",
    )
    host_id: str = Field(
        default_factory=socket.gethostname,
        description="Stable name of this host; a second supervisor of that name does not start.",
    )
    max_attempts: int = Field(3, ge=1, le=20, description="How often a job may be started before it fails.")
    rung_quiet_seconds: float = Field(
        0.0,
        ge=0,
        description="After so long without an incident an engine climbs a rung; 0: only by an operator.",
    )
    drain_seconds: float = Field(
        30.0, ge=0, description="On shutdown, how long running jobs may finish before they are queued again."
    )
    stale_seconds: float = Field(
        30.0, ge=2, description="An engine silent for so long has lost its jobs to the other supervisors."
    )
    unserved_seconds: float = Field(
        21600.0,
        ge=0,
        description="How long a queued job waits while no engine serves its model, twice as long while one "
        "is being started; then it fails. 0: for ever.",
    )
    min_free_bytes: int = Field(
        256 * 1024 * 1024, ge=0, description="Free space in `media` under which jobs are refused (507)."
    )
    retention_days: float = Field(
        30.0, ge=0, description="Finished videos are kept so long; 0: for ever. A key's own limit goes first."
    )
    retention_videos: int = Field(0, ge=0, description="Finished videos kept of each key; 0: no limit.")
    retention_bytes: int = Field(
        0, ge=0, description="Bytes of finished videos kept of each key; 0: no limit."
    )
    record_days: float = Field(
        90.0, ge=0, description="Jobs without files are forgotten, prompts included, after so long; 0: never."
    )
    incident_days: float = Field(180.0, ge=0, description="Incidents are forgotten after so long; 0: never.")
    engine_days: float = Field(
        30.0,
        ge=0,
        description="Engines that were not heard of for so long are forgotten, with their fallbacks and, "
        "where no other engine has it, their model; 0: never.",
    )
    queue_jobs: int = Field(1000, ge=1, description="Most jobs that wait for a model (429 beyond).")
    queue_seconds: float = Field(
        86400.0,
        ge=0,
        description="Longest estimated wait for an engine that is accepted (429 beyond); 0: any.",
    )
    key_jobs: int = Field(100, ge=0, description="Most unfinished jobs of an API key (429 beyond); 0: any.")
    key_jobs_per_minute: float = Field(
        60.0, ge=0, description="Most jobs an API key submits in a minute (429 beyond); 0: any."
    )
    sync_seconds: float = Field(
        600.0, ge=1, description="Longest that POST /v1/videos/sync waits; the video goes on after it."
    )
    doctor: bool = Field(
        True, description="Whether a supervisor examines its host before it starts an engine."
    )
    webhook_secret: str = Field(
        "",
        repr=False,
        description="Signs webhooks: whsec_ and at least 24 bytes in base64; empty: no webhooks.",
    )
    webhook_secret_file: Path | None = Field(
        None, description="File with `webhook_secret`, for those who keep secrets out of the environment."
    )
    webhook_private: bool = Field(
        False, description="Whether webhooks may go to private networks, and over plain http."
    )
    log_format: Literal["auto", "human", "json"] = Field(
        "auto", description="`auto` is human in a terminal and JSON otherwise."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Least level logged.")
    log_prompts: bool = Field(False, description="Whether prompts may appear in logs.")

    @field_validator("media", "model", "engine_python", *FILES, mode="before")
    @classmethod
    def _nothing_is_not_the_working_directory(cls, value: object) -> object:
        return None if value == "" else value

    @field_validator(
        "host", "operation_host", "supervisor_host", "var", "profile", "profiles", "runtimes", "device_locks",
        mode="before",
    )  # fmt: skip
    @classmethod
    def _something_is_said(cls, value: object) -> object:
        # Nothing would mean the working directory, and every address of this machine.
        if value == "":
            raise ValueError("is empty: set a value, or unset the variable for its default")
        return value

    @field_validator("webhook_secret")
    @classmethod
    def _webhook_secret_is_a_key(cls, value: str) -> str:
        return _webhook_key(value) if value else value

    @field_validator("database_url")
    @classmethod
    def _database_url_is_postgresqls(cls, value: str) -> str:
        words = "=" in value and "://" not in value  # libpq's other form, host=… dbname=…
        if value and not words and not value.startswith(("postgresql://", "postgres://")):
            raise ValueError("is not a PostgreSQL URL: set one such as postgresql://user@host/framekeeper")
        return value

    @field_validator("host_id")
    @classmethod
    def _host_id_is_a_word(cls, value: str) -> str:
        if not value or any(c.isspace() or c == "/" for c in value):
            raise ValueError("must be one word without spaces or slashes")
        return value

    @property
    def gateway_addresses(self) -> list[tuple[str, int]]:
        """Host and port of everything the gateway listens on, the API's first."""
        own = [(self.operation_host, self.operation_port)] if self.operation_port else []
        return [(self.host, self.port), *own]

    @property
    def media_directory(self) -> Path:
        """Where finished videos lie."""
        return (self.media or self.var / "media").absolute()

    @property
    def run_directory(self) -> Path:
        """Sockets, logs and engine files of this host."""
        return (self.var / "run").absolute()

    @property
    def cache_directory(self) -> Path:
        """Compile caches, one directory per (runtime, card, profile, group) below it."""
        return (self.var / "cache").absolute()


def load() -> Settings:
    """Read the environment. Raises SettingsError naming every wrong variable, misspelt names too."""
    lines = misspelt(os.environ)
    try:
        settings = Settings()
    except ValidationError as error:
        for fault in error.errors():
            name = PREFIX + str(fault["loc"][0]).upper()
            value = os.environ.get(name, fault.get("input"))
            field = Settings.model_fields.get(str(fault["loc"][0]))
            meaning = f" ({field.description})" if field and field.description else ""
            shown = "(not shown)" if name.removeprefix(PREFIX).lower() in SECRETS else repr(value)
            lines.append(f"{name}={shown}: {fault['msg'].removeprefix('Value error, ')}.{meaning}")
        raise SettingsError("\n".join(lines)) from None
    if lines:
        raise SettingsError("\n".join(lines))
    return with_files(settings)


def misspelt(names: Iterable[str]) -> list[str]:
    """A line for each variable that is no setting but nearly one: it would be ignored in silence."""
    known = {PREFIX + name.upper(): name for name in Settings.model_fields}
    lines = []
    for name in sorted(names):
        word = name.removeprefix(PREFIX)
        if word == name or name in known or word in OTHERS:
            continue
        near = get_close_matches(word, [each.removeprefix(PREFIX) for each in known], n=1, cutoff=0.82)
        if near:
            lines.append(f"{name}: there is no such setting. Rename it to {PREFIX}{near[0]}, or unset it.")
    return lines


def with_files(settings: Settings) -> Settings:
    """The settings with what their files hold. Raises SettingsError naming every file that cannot be used."""
    faults = []
    for read in (with_password, with_webhook_secret):
        try:
            settings = read(settings)
        except SettingsError as error:
            faults.append(str(error))
    if faults:
        raise SettingsError("\n".join(faults))
    return settings


def with_webhook_secret(settings: Settings) -> Settings:
    """The settings with the webhook file's content as the secret. Raises SettingsError when it cannot be."""
    path = settings.webhook_secret_file
    if path is None:
        return settings
    name = f"{PREFIX}WEBHOOK_SECRET_FILE={path}"
    if settings.webhook_secret:
        raise SettingsError(f"{name}: {PREFIX}WEBHOOK_SECRET is set as well; leave one of the two out")
    try:
        return settings.model_copy(update={"webhook_secret": _webhook_key(_content(path, name))})
    except ValueError as error:
        raise SettingsError(f"{name}: its content {error}") from None


def _content(path: Path, name: str) -> str:
    """What a file with a secret holds."""
    try:
        content = path.read_text(encoding="utf-8").strip("\n")
    except OSError as error:
        raise SettingsError(f"{name}: it cannot be read ({error.strerror})") from None
    except ValueError:
        raise SettingsError(f"{name}: it is not UTF-8 text") from None
    if not content:
        raise SettingsError(f"{name}: it is empty; write the secret into it")
    return content


def _webhook_key(value: str) -> str:
    try:
        key = base64.b64decode(value.removeprefix("whsec_"), validate=True)
    except ValueError:
        key = b""
    if not value.startswith("whsec_") or len(key) < 24:
        raise ValueError("must be whsec_ and at least 24 bytes in base64 (openssl rand -base64 32)")
    return value


def with_password(settings: Settings) -> Settings:
    """The settings with the password file's content in the URL. Raises SettingsError when it cannot be."""
    path, url = settings.database_password_file, settings.database_url
    if path is None or not url:
        return settings
    name = f"{PREFIX}DATABASE_PASSWORD_FILE={path}"
    password = _content(path, name)
    match = re.fullmatch(r"(postgres(?:ql)?://)(?:([^:@/?#]*)(:[^@/?#]*)?@)?(.*)", url)
    if match is None:
        raise SettingsError(
            f"{name}: {PREFIX}DATABASE_URL is not a postgresql:// URL, so there is no place to put it"
        )
    if match[3]:
        raise SettingsError(f"{name}: {PREFIX}DATABASE_URL has a password already; leave one of the two out")
    whole = f"{match[1]}{match[2] or ''}:{quote(password, safe='')}@{match[4]}"
    return settings.model_copy(update={"database_url": whole})
