"""The support bundle: one zip with everything a maintainer asks for, and nothing that is nobody's business.

Every part is made by itself: one that cannot be had says why, and the others are there all the same.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import sys
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from framekeeper import __version__
from framekeeper.database.embedded import database_url, running_server
from framekeeper.database.pool import Database
from framekeeper.doctor.commands import doctor_record
from framekeeper.doctor.redaction import Redactor, shown_environment
from framekeeper.engine import host
from framekeeper.jobs import engines, incidents
from framekeeper.profiles.commands import launch_record
from framekeeper.profiles.installed import installed_versions
from framekeeper.profiles.launch import resolve
from framekeeper.profiles.load import load_profile
from framekeeper.settings import SECRETS, Settings

#: Of each log, at most this much from its end.
LOG_BYTES = 512 * 1024
#: The newest incidents, and the newest jobs whose prompts are looked for in all parts.
INCIDENTS = 100
PROMPTS = 1000
#: A prompt of a word or two is looked for by its place only: as a text it may stand anywhere.
LEAST_PROMPT = 12
DATABASE_SECONDS = 10.0

_README = """\
Made by `framekeeper doctor --bundle`. Look through it before you send it.

versions.json     Framekeeper, Python, system, the engine's packages
doctor.json       all findings of `framekeeper doctor`
launch.json       what an engine gets: environment, options, deadlines
profile.yaml      the profile, with what it extends filled in
settings.json     FRAMEKEEPER_... as they are in force, without passwords
environment.json  names of all variables; values of those that are on an allow-list only
incidents.json    the newest ends of engines with their causes, from the database
engines.json      engines and their states, from the database
logs/             ends of the logs of supervisor, gateway and engines; triage's, where it ran

Removed everywhere: prompts, keys, tokens, passwords, and values of variables with such names.
"""


def write(path: Path, settings: Settings, profile_name: str, *, fast: bool = False) -> list[str]:
    """Write the bundle; returns the names of its parts. `fast` is the doctor's.

    Raises OSError when the file cannot be written; it is readable by its owner only.
    """
    database = _from_database(settings)
    secrets = [str(getattr(settings, name)) for name in SECRETS]
    redactor = Redactor.of(os.environ, [settings.database_url, *secrets, *database.pop("prompts", [])])
    parts: dict[str, Callable[[], Any]] = {
        "versions.json": lambda: _versions(settings, profile_name),
        "doctor.json": lambda: _doctor(settings, profile_name, redactor, fast=fast),
        "launch.json": lambda: _launch(settings, profile_name),
        "profile.yaml": lambda: _profile(settings, profile_name),
        "settings.json": lambda: settings.model_dump(mode="json"),
        "environment.json": lambda: shown_environment(os.environ, redactor),
        "incidents.json": lambda: database["incidents"],
        "engines.json": lambda: database["engines"],
    }
    written = ["README.txt"]
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as bundle:
        bundle.writestr("README.txt", _README)
        for name, part in parts.items():
            content = redactor.value(_tried(part))
            text = json.dumps(content, indent=1, default=str)
            if name.endswith(".yaml"):
                text = yaml.safe_dump(content, sort_keys=False, width=110)
            bundle.writestr(name, text)
            written.append(name)
        for log in _logs(settings):
            name = f"logs/{log.relative_to(settings.var.absolute()).as_posix().replace('/', '-')}"
            bundle.writestr(name, redactor.text(_end(log)))
            written.append(name)
    return written


def _tried(part: Callable[[], Any]) -> Any:
    try:
        return part()
    except Exception as error:  # whatever is broken here is what the bundle is about
        return {"not available": f"{type(error).__name__}: {error}"}


def _versions(settings: Settings, profile_name: str) -> dict[str, Any]:
    runtime = load_profile(profile_name, settings.profiles).runtime
    return {
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "framekeeper": __version__,
        "python": sys.version,
        "system": platform.platform(),
        "libc": " ".join(platform.libc_ver()),
        "processors": os.cpu_count(),
        "runtime": runtime,
        "engine": installed_versions(host.engine_environment(settings, runtime)),
    }


def _doctor(settings: Settings, profile_name: str, redactor: Redactor, *, fast: bool) -> dict[str, Any]:
    record = doctor_record(settings, profile_name, fast=fast)
    # A doctor that is told of a whole environment shows it; the bundle has one list of what may be seen.
    return {key: _no_values(value, redactor) for key, value in record.items()}


def _no_values(value: Any, redactor: Redactor) -> Any:
    """The same, with mappings called `environment` reduced to what may be shown."""
    if not isinstance(value, Mapping):
        return value
    return {
        key: shown_environment(item, redactor)
        if key == "environment" and isinstance(item, Mapping)
        else _no_values(item, redactor)
        for key, item in value.items()
    }


def _launch(settings: Settings, profile_name: str) -> dict[str, Any]:
    profile = load_profile(profile_name, settings.profiles)
    if settings.model:
        profile = profile.model_copy(update={"model": settings.model})
    return launch_record(resolve(profile, host.gather(settings, profile.runtime)))


def _profile(settings: Settings, profile_name: str) -> dict[str, Any]:
    return load_profile(profile_name, settings.profiles).model_dump(mode="json")


def _from_database(settings: Settings) -> dict[str, Any]:
    """Incidents, engines and prompts, or for each of the first two why there are none."""
    directory = (settings.var / "postgres").absolute()
    url = settings.database_url or (database_url(directory) if running_server(directory) else "")
    reason = "FRAMEKEEPER_DATABASE_URL is not set, and no embedded database runs"
    if url:
        try:
            return asyncio.run(_read(url))
        except Exception as error:  # a database of any state must not cost the other parts
            reason = f"the database does not answer: {type(error).__name__}: {error}"
    return {part: {"not available": reason} for part in ("incidents", "engines")}


async def _read(url: str) -> dict[str, Any]:
    database = Database(url, size=1, name="framekeeper-bundle")
    async with asyncio.timeout(DATABASE_SECONDS):
        await database.open()
        try:
            rows, _ = await incidents.page(database, limit=INCIDENTS)
            found = [asdict(each) for each in await engines.all_engines(database)]
            prompts = await database.fetch_all(
                "SELECT request->>'prompt' AS prompt, request->>'negative_prompt' AS negative FROM videos "
                "ORDER BY created_at DESC LIMIT %(limit)s",
                {"limit": PROMPTS},
            )
        finally:
            await database.close()
    return {
        "incidents": [asdict(row) for row in rows],
        "engines": found,
        "prompts": [text for row in prompts for text in row.values() if text and len(text) >= LEAST_PROMPT],
    }


def _logs(settings: Settings) -> list[Path]:
    var = settings.var.absolute()
    wanted = (*var.glob("log/*.log"), *var.glob("log/*.log.1"), *var.glob("triage/*.log"))
    return sorted(path for path in wanted if path.is_file())


def _end(log: Path) -> str:
    try:
        with log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - LOG_BYTES))
            text = file.read().decode(errors="replace")
    except OSError as error:
        return f"(cannot be read: {error.strerror})"
    # The first line is cut somewhere: half a line may be half a secret, which no pattern knows.
    return text if size <= LOG_BYTES else text.partition("\n")[2]
