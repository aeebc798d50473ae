"""Asking supervisor and gateway how far they are."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from framekeeper.settings import Settings

SECONDS = 1.0


@dataclass(frozen=True)
class Startup:
    """The supervisor's answer: `silent` when there was none."""

    status: str = "silent"
    engines: tuple[Mapping[str, Any], ...] = ()

    def sentence(self) -> str:
        """All engines in a few words."""
        if self.status == "silent":
            return "waiting for the supervisor"
        return ", ".join(_engine(engine, len(self.engines) > 1) for engine in self.engines) or self.status


def startup(settings: Settings) -> Startup:
    """Ask the supervisor."""
    answer = _get(settings.supervisor_host, settings.supervisor_port, "/health/startup")
    if answer is None:
        return Startup()
    try:
        body = json.loads(answer[1])
        return Startup(str(body["status"]), tuple(body["engines"]))
    except (ValueError, KeyError, TypeError):
        return Startup()


def gateway_is_live(settings: Settings) -> bool:
    """Ask the gateway."""
    answer = _get(settings.host, settings.port, "/health/live")
    return answer is not None and answer[0] == http.client.OK


def _engine(engine: Mapping[str, Any], named: bool) -> str:
    words = [str(engine.get("state", "unknown"))]
    phase = engine.get("phase")
    if phase and phase != words[0]:
        words.append(str(phase).replace("_", " "))
    if engine.get("state") == "failed" and engine.get("detail"):
        words.append(str(engine["detail"]))
    text = ", ".join(words)
    return f"{engine.get('id')}: {text}" if named else text


def _get(host: str, port: int, path: str) -> tuple[int, bytes] | None:
    # Not urllib: it would ask a proxy named in the environment.
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104
    connection = http.client.HTTPConnection(host, port, timeout=SECONDS)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
