"""The gateway's metrics, over all its processes.

Every label has a bounded set of values: a route is its template, a method one of HTTP's, a model one that is
registered.
"""

from __future__ import annotations

import os
import platform
from pathlib import Path

from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client import generate_latest as generate
from prometheus_client.multiprocess import MultiProcessCollector

from framekeeper import __version__, errors
from framekeeper.gateway import metrics_directory

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
CONTENT_TYPE = CONTENT_TYPE_LATEST

REQUESTS = Counter("framekeeper_http_requests", "HTTP requests answered.", ("route", "method", "status"))
SECONDS = Histogram(
    "framekeeper_http_request_seconds",
    "Seconds from a request's first byte to its answer's last.",
    ("route", "method"),
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
)
#: Gauges name how those of several processes are put together; `live` leaves out processes that ended.
IN_FLIGHT = Gauge(
    "framekeeper_http_requests_in_flight",
    "HTTP requests that are being answered.",
    multiprocess_mode="livesum",
)
LISTENERS = Gauge(
    "framekeeper_event_listeners", "Clients that follow a stream of events.", multiprocess_mode="livesum"
)
BUILD = Gauge(
    "framekeeper_build_info",
    "1, with the version of the program that is scraped.",
    ("program", "version", "python"),
    multiprocess_mode="livemax",
)
WEBHOOKS = Counter(
    "framekeeper_webhook_deliveries",
    "Tries to deliver a webhook: delivered, failed (tried again later), given_up.",
    ("result",),
)
WEBHOOK_RESULTS = ("delivered", "failed", "given_up")
ACCEPTED = Counter("framekeeper_videos_accepted", "Videos accepted.", ("model",))
FINISHED = Counter(
    "framekeeper_videos_finished",
    "Jobs that were cancelled or deleted while they waited in line, or waited too long and no supervisor was "
    "there to say so; supervisors count the others.",
    ("state", "reason"),
)
REFUSED = Counter(
    "framekeeper_admission_refused",
    "Requests for a video that were not accepted, by the error's code.",
    ("reason",),
)
OTHER = "other"
CODES = frozenset(
    each.code
    for each in vars(errors).values()
    if isinstance(each, type) and issubclass(each, errors.FramekeeperError)
)
#: Where videos are asked for.
ADMISSION = frozenset({"/v1/videos", "/v1/videos/sync", "/v1/videos/batch"})


def cancelled_in_line() -> None:
    """A job ended before an engine had it."""
    FINISHED.labels("cancelled", "").inc()


def failed_in_line(error_code: str | None) -> None:
    """A job failed before an engine had it."""
    FINISHED.labels("failed", error_code if error_code in CODES else OTHER).inc()


def begin() -> None:
    """Show the series that there always are. To be called in each serving process."""
    BUILD.labels("gateway", __version__, platform.python_version()).set(1)
    FINISHED.labels("cancelled", "")
    for code in CODES:
        REFUSED.labels(code)
    for result in WEBHOOK_RESULTS:
        WEBHOOKS.labels(result)


def observe(route: str, method: str, status: int, seconds: float) -> None:
    """Count one answered request."""
    method = method if method in METHODS else "other"
    REQUESTS.labels(route, method, str(status)).inc()
    SECONDS.labels(route, method).observe(seconds)


def refused(route: str, method: str, code: str) -> None:
    """Count an error's answer, where it was to a request for a video."""
    if method == "POST" and route in ADMISSION:
        REFUSED.labels(code if code in CODES else OTHER).inc()


def exposition() -> bytes:
    """All metrics as text; of all processes where PROMETHEUS_MULTIPROC_DIR is set (gunicorn.py does)."""
    if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
        return generate(REGISTRY)
    registry = CollectorRegistry()
    MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    with metrics_directory.read(Path(os.environ["PROMETHEUS_MULTIPROC_DIR"])):
        return generate(registry)
