"""Metrics of the supervisor; those of the gateway are in gateway/metrics.py. Names by Prometheus' conventions
(https://prometheus.io/docs/practices/naming/).
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

registry = CollectorRegistry()

SECONDS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000, 3000)

engine_state = Gauge(
    "framekeeper_engine_state",
    "1 for the state an engine is in, 0 for the others.",
    ["engine", "state"],
    registry=registry,
)
engine_restarts = Counter(
    "framekeeper_engine_restarts",
    "Processes that were started because the one before ended.",
    ["engine"],
    registry=registry,
)
engine_start_seconds = Histogram(
    "framekeeper_engine_start_seconds",
    "From the start of a worker process to the end of its warm-up.",
    registry=registry,
    buckets=SECONDS,
)
incidents = Counter(
    "framekeeper_incidents",
    "Unplanned ends of engines, by what was found to be the cause.",
    ["signature"],
    registry=registry,
)
ready_again_seconds = Histogram(
    "framekeeper_incident_ready_again_seconds",
    "From an unplanned end of an engine to the end of the next one's warm-up.",
    registry=registry,
    buckets=SECONDS,
)
phase_seconds = Histogram(
    "framekeeper_phase_seconds",
    "Time jobs spent in each phase.",
    ["phase"],
    registry=registry,
    buckets=SECONDS,
)
step_seconds = Histogram(
    "framekeeper_denoising_step_seconds",
    "Time of one denoising step.",
    registry=registry,
    buckets=SECONDS,
)
videos_finished = Counter(
    "framekeeper_videos_finished",
    "Jobs that reached a final state, with the error's code where they failed.",
    ["state", "reason"],
    registry=registry,
)
