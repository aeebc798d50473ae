"""The gateway's metrics, over all its processes.

Every label has a bounded set of values: a route is its template, a method one of HTTP's, a model one that is
registered.
"""

from __future__ import annotations

import os

from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, CollectorRegistry, Counter, Histogram
from prometheus_client import generate_latest as generate
from prometheus_client.multiprocess import MultiProcessCollector

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
CONTENT_TYPE = CONTENT_TYPE_LATEST

REQUESTS = Counter("framekeeper_http_requests", "HTTP requests answered.", ("route", "method", "status"))
SECONDS = Histogram(
    "framekeeper_http_request_seconds",
    "Seconds from a request's first byte to its answer's last.",
    ("route", "method"),
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
)
ACCEPTED = Counter("framekeeper_videos_accepted", "Videos accepted.", ("model",))


def observe(route: str, method: str, status: int, seconds: float) -> None:
    """Count one answered request."""
    method = method if method in METHODS else "other"
    REQUESTS.labels(route, method, str(status)).inc()
    SECONDS.labels(route, method).observe(seconds)


def exposition() -> bytes:
    """All metrics as text; of all processes where PROMETHEUS_MULTIPROC_DIR is set (gunicorn.py does)."""
    if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
        return generate(REGISTRY)
    registry = CollectorRegistry()
    MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    return generate(registry)
