"""A job from its submission to its end: by events where the service has them, by polling otherwise."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import httpx

from framekeeper.client.service import ClientError, Passing, Patience, Service

Job = dict[str, Any]
POLL_SECONDS = 1.0
FINAL = frozenset({"completed", "failed", "cancelled", "expired"})


def follow(service: Service, job: Job) -> Iterator[Job]:
    """Yield the job as it changes; the last one is final and whole. Raises ClientError."""
    yield job
    current = dict(job)
    with_events = True
    patience = Patience(service)
    while current["status"] not in FINAL:
        try:
            if with_events:
                for change in _events(service, current["id"]):
                    patience.reset()
                    current |= change
                    yield current
            else:
                time.sleep(POLL_SECONDS)
            current = service.retrieve(current["id"])
            patience.reset()
            yield current
            # A stream that ended without the end of the job: not again at once.
            if with_events and current["status"] not in FINAL:
                time.sleep(POLL_SECONDS)
        except (httpx.TransportError, Passing) as error:
            patience.wait(error)
        except ClientError as error:
            if not with_events or error.http not in (404, 405, 406, 501):
                raise
            with_events = False


def _events(service: Service, video_id: str) -> Iterator[Job]:
    with service.stream(f"/v1/videos/{video_id}/events", Accept="text/event-stream") as answer:
        if not answer.headers.get("content-type", "").startswith("text/event-stream"):
            raise ClientError("This service sends no events.", http=406)
        event, data = "", ""
        for line in answer.iter_lines():
            if line.startswith("event:"):
                event = line[6:].strip()
            elif line.startswith("data:"):
                data += line[5:].strip()
            elif not line:
                if event == "end":
                    return
                if event == "video" and data:
                    yield dict(json.loads(data))
                event, data = "", ""
