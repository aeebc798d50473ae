"""From a prompt to a file."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any
from uuid import uuid4

from framekeeper.client.content import download
from framekeeper.client.display import Display, engines_sentence
from framekeeper.client.follow import follow
from framekeeper.client.interrupt import Interrupts
from framekeeper.client.service import ClientError, Fields, Service

ENGINES_EVERY = 3.0


class Cancelled(ClientError):
    """The person gave up."""


def generate(
    service: Service,
    fields: Fields,
    image: tuple[str, bytes] | None,
    target: Path | None,
    display: Display,
) -> Path:
    """Make a video and write it; returns where it is. Raises ClientError; Ctrl-C cancels the job."""
    interrupts = Interrupts()
    job: dict[str, Any] | None = None
    with display:
        try:
            with interrupts.held():
                job = service.create(fields, image, f"cli-{uuid4()}")
            interrupts.check()
            return finish(service, job, target, display)
        except KeyboardInterrupt:
            raise _cancelled(service, job, display) from None


def finish(service: Service, job: dict[str, Any], target: Path | None, display: Display) -> Path:
    """Wait for a job and fetch its file."""
    final = watch(service, job, display)
    if final["status"] != "completed":
        raise ClientError(ending(final))
    target = target or Path(f"{final['id']}.mp4")
    display.told("Downloading")
    download(service, str(final["id"]), target)
    return target


def watch(service: Service, job: dict[str, Any], display: Display) -> dict[str, Any]:
    """Follow a job to its end, and tell why nothing happens when nothing does."""
    asked = 0.0
    last = job
    for last in follow(service, job):
        display.show(last)
        if last["status"] == "queued" and time.monotonic() - asked > ENGINES_EVERY:
            asked = time.monotonic()
            if reason := last.get("waiting_reason") or engines_sentence(service.engines()):
                display.waits(reason)
    return last


def ending(job: dict[str, Any]) -> str:
    """Why there is no file."""
    error = job.get("error") or {}
    reason = error.get("message") if isinstance(error, dict) else str(error)
    words = {"cancelled": "was cancelled", "expired": "has expired: its file was removed"}
    said = words.get(str(job["status"]), str(job["status"]))
    return f"The video {job['id']} {said}{f': {reason}' if reason else '.'}"


def _cancelled(service: Service, job: dict[str, Any] | None, display: Display) -> ClientError:
    if job is None:
        return Cancelled(
            "Left before the service answered; `framekeeper jobs list` shows whether there is a job."
        )
    display.told("Cancelling; Ctrl-C again leaves at once")
    try:
        service.patience = min(service.patience, 10)
        service.cancel(str(job["id"]))
    except KeyboardInterrupt:
        return Cancelled(f"Left without an answer: `framekeeper jobs cancel {job['id']}` cancels the job.")
    except ClientError as error:
        return Cancelled(f"The job {job['id']} could not be cancelled: {error}")
    return Cancelled(f"Cancelled {job['id']}.")
