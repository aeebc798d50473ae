"""Metrics of the supervisor; those of the gateway are in gateway/metrics.py. docs/metrics.md lists both.

Names by Prometheus' conventions (https://prometheus.io/docs/practices/naming/). Every label has a bounded set
of values: those of one supervisor's engines and cards, or of a closed set. Series of closed sets exist from
the start, so that the first event is a rise and not the birth of a series.
"""

from __future__ import annotations

import platform

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)

from framekeeper import __version__, errors
from framekeeper.diagnosis.signature import signatures
from framekeeper.metrics.snapshot import Family, Snapshot

disable_created_metrics()  # type: ignore[no-untyped-call]
registry = CollectorRegistry()
ProcessCollector(registry=registry)

SECONDS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000, 3000)
OTHER = "other"

# -- engines ------------------------------------------------------------------------------------------------

build = Gauge(
    "framekeeper_build_info",
    "1, with the version of the program that is scraped.",
    ["program", "version", "python"],
    registry=registry,
)
build.labels("supervisor", __version__, platform.python_version()).set(1)
engine_info = Gauge(
    "framekeeper_engine_info",
    "1, with what an engine was started as; join other series with it on `engine`.",
    ["engine", "model", "profile", "runtime"],
    registry=registry,
)
engine_state = Gauge(
    "framekeeper_engine_state",
    "1 for the state an engine is in, 0 for the others.",
    ["engine", "state"],
    registry=registry,
)
engine_rung = Gauge(
    "framekeeper_engine_rung",
    "Fallback rung an engine runs on: 0 is the profile itself, n the n-th of its fallbacks.",
    ["engine"],
    registry=registry,
)
engine_starts = Counter(
    "framekeeper_engine_starts",
    "Starts of a worker process by their end: ready (its warm-up made a video), load_failed, warm_up_failed, "
    "not_started (no process could be made), stopped.",
    ["engine", "result"],
    registry=registry,
)
START_RESULTS = ("ready", "load_failed", "warm_up_failed", "not_started", "stopped")
engine_start_seconds = Histogram(
    "framekeeper_engine_start_seconds",
    "From the start of a worker process to the end of its warm-up.",
    registry=registry,
    buckets=SECONDS,
)
warm_up_seconds = Histogram(
    "framekeeper_engine_warm_up_seconds",
    "Warm-up videos that were made: from their order to the file that was read back.",
    registry=registry,
    buckets=SECONDS,
)
engine_restarts = Counter(
    "framekeeper_engine_restarts",
    "Processes that were started because the one before ended.",
    ["engine"],
    registry=registry,
)
compiled_modules = Gauge(
    "framekeeper_engine_compiled_modules",
    "Compiled modules of each transformer, counted in the running worker; 0 is one that runs uncompiled.",
    ["engine", "transformer"],
    registry=registry,
)
compile_cache_files = Gauge(
    "framekeeper_engine_compile_cache_files",
    "Files of the compile caches at an engine's last start: found (there before it), made (the cache had"
    " no match). Both are 0 where nothing is compiled.",
    ["engine", "origin"],
    registry=registry,
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

# -- jobs ---------------------------------------------------------------------------------------------------

phase_seconds = Histogram(
    "framekeeper_phase_seconds",
    "Time jobs spent in each phase on an engine. shape_class is n for shapes of at most 2^n tokens.",
    ["phase", "profile", "shape_class"],
    registry=registry,
    buckets=SECONDS,
)
step_seconds = Histogram(
    "framekeeper_denoising_step_seconds",
    "Time of one denoising step. shape_class is n for shapes of at most 2^n tokens.",
    ["profile", "shape_class"],
    registry=registry,
    buckets=SECONDS,
)
queue_wait_seconds = Histogram(
    "framekeeper_queue_wait_seconds",
    "From the acceptance of a job to its first start on an engine.",
    ["profile"],
    registry=registry,
    buckets=SECONDS,
)
videos_finished = Counter(
    "framekeeper_videos_finished",
    "Jobs that this supervisor brought to a final state, with the error's code where they failed.",
    ["state", "reason"],
    registry=registry,
)
attempts_again = Counter(
    "framekeeper_attempts_repeated",
    "Attempts that ended without a result and were queued again.",
    registry=registry,
)
#: What a job can fail by: the error's codes. Those that engines cause exist from the start.
REASONS = frozenset(
    each.code
    for each in vars(errors).values()
    if isinstance(each, type) and issubclass(each, errors.FramekeeperError)
)
USUAL_REASONS = ("engine_failed", "frames_invalid", "refused_by_engine", "storage_failed")

# -- retention and webhooks ---------------------------------------------------------------------------------

retention_removed = Counter(
    "framekeeper_retention_removed",
    "Videos whose files retention has removed: age (older than allowed), count and bytes (the oldest of an "
    "owner who has more than allowed), orphan (files that nobody may ask for).",
    ["reason"],
    registry=registry,
)
RETENTION_REASONS = ("age", "count", "bytes", "orphan")

# -- read every few seconds ---------------------------------------------------------------------------------

QUEUE_DEPTH = Family(
    "framekeeper_queue_depth",
    "Jobs that wait for an engine, in the whole database: take max() over supervisors, not sum().",
    ("model", "shape_class"),
)
QUEUE_OLDEST = Family(
    "framekeeper_queue_oldest_age_seconds",
    "Age of the oldest job that waits, 0 when none does; in the whole database, so max() over supervisors.",
    ("model", "shape_class"),
)
QUEUE_SECONDS = Family(
    "framekeeper_queue_seconds",
    "Estimated seconds until a job that is accepted now would start, by what jobs of its model took; missing "
    "while no engine serves or nothing was measured yet; in the whole database, so max() over supervisors.",
    ("model",),
)
MODEL_UNSERVED = Family(
    "framekeeper_model_unserved_seconds",
    "Since an engine last served a model that has engines or jobs, 0 while one does; in the whole database, "
    "so max() over supervisors. Its jobs fail after FRAMEKEEPER_UNSERVED_SECONDS.",
    ("model",),
)
IN_PROGRESS = Family(
    "framekeeper_videos_in_progress",
    "Jobs that an engine works on; in the whole database, so max() over supervisors.",
    ("model",),
)
WEBHOOKS_WAITING = Family(
    "framekeeper_webhooks_waiting",
    "Webhooks that are not delivered yet and not given up; in the whole database, so max() over supervisors.",
)
MEDIA_BYTES = Family(
    "framekeeper_media_bytes",
    "Bytes of the finished videos that are kept; in the whole database, so max() over supervisors.",
)
MEDIA_FREE = Family(
    "framekeeper_media_free_bytes",
    "Free bytes on the file system of the media directory, as this host sees it.",
)
DATABASE_UP = Family(
    "framekeeper_database_up",
    "1 when the last look into the database succeeded, 0 otherwise; the figures from it are then missing.",
)
DEVICE_USED = Family(
    "framekeeper_device_memory_used_bytes",
    "Memory in use on a card: by this supervisor's engines, or by others (which includes what the driver "
    "cannot tell apart).",
    ("device", "by"),
)
DEVICE_TOTAL = Family("framekeeper_device_memory_bytes", "Memory that a card has.", ("device",))
ENGINE_RESIDENT = Family(
    "framekeeper_engine_resident_bytes",
    "Resident set of an engine's processes in the host's memory.",
    ("engine",),
)
ENGINE_ALLOCATED = Family(
    "framekeeper_engine_allocated_bytes",
    "What an engine's allocator held at its last denoising step; on a CPU its resident set then.",
    ("engine",),
)

census = Snapshot(
    QUEUE_DEPTH,
    QUEUE_OLDEST,
    QUEUE_SECONDS,
    MODEL_UNSERVED,
    IN_PROGRESS,
    WEBHOOKS_WAITING,
    MEDIA_BYTES,
    MEDIA_FREE,
    DATABASE_UP,
)
memory = Snapshot(DEVICE_USED, DEVICE_TOTAL, ENGINE_RESIDENT, ENGINE_ALLOCATED)
registry.register(census)
registry.register(memory)


def known(value: str, allowed: frozenset[str]) -> str:
    """`value` where it is one of the allowed ones, `other` else: a label never takes a text from outside."""
    return value if value in allowed else OTHER


def count_incident(signature: str) -> None:
    """An engine ended unplanned."""
    incidents.labels(known(signature, _SIGNATURES)).inc()


def count_finished(state: str, error_code: str | None) -> None:
    """A job reached a final state."""
    reason = known(error_code, REASONS) if error_code else ""
    videos_finished.labels(state=state, reason=reason).inc()


_SIGNATURES = frozenset(signature.id for signature in signatures())


def _begin() -> None:
    for state in ("completed", "cancelled"):
        videos_finished.labels(state=state, reason="")
    for reason in USUAL_REASONS:
        videos_finished.labels(state="failed", reason=reason)
    for reason in RETENTION_REASONS:
        retention_removed.labels(reason)


_begin()
