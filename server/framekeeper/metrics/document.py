"""docs/metrics.md, written from the metrics themselves.

python -m framekeeper.metrics.document > docs/metrics.md
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from types import ModuleType

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.metrics import MetricWrapperBase

from framekeeper import metrics
from framekeeper.gateway import metrics as of_gateway
from framekeeper.metrics.snapshot import Family

_HEAD = """\
# Metrics

<!-- Written by `python -m framekeeper.metrics.document`; change metrics/ or gateway/metrics.py instead. -->

Two programs are scraped: the gateway on its port (`/metrics`, 8000, all its processes together) and each
host's supervisor on its own (`/metrics`, 8001). `configs/prometheus/prometheus.yml` does it for compose,
`configs/prometheus/alerts.yml` holds alerts, `configs/grafana/dashboards/framekeeper.json` is a dashboard.

* Every label has a bounded set of values. No prompt, video, request or client is ever a label: those are in
  the logs, where `request_id`, `video_id` and `engine` join the lines of all programs.
* `shape_class` is n for a video of at most 2^n tokens (16 x 16 pixels and four frames each), which is also
  the number of its queue.
* Figures of the whole database are exported by every supervisor alike: take `max()` over supervisors, not
  `sum()`.
* The only cache that outlives a job is that of compiled code: `framekeeper_engine_compile_cache_files` says
  how much of it a start has found and how much it had to make. Prompts' embeddings are not kept, so there is
  no hit rate of them.
"""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One metric as it is documented; the name is that of the exposition."""

    name: str
    kind: str
    labels: tuple[str, ...]
    unit: str
    meaning: str


def rows(module: ModuleType) -> list[Row]:
    """All metrics that a module declares, by name."""
    found = [_row(each) for each in vars(module).values() if isinstance(each, MetricWrapperBase | Family)]
    return sorted(found, key=lambda row: row.name)


def _row(metric: MetricWrapperBase | Family) -> Row:
    if isinstance(metric, Family):
        return _with_unit(metric.name, "gauge", metric.labels, metric.meaning)
    kind = {Counter: "counter", Gauge: "gauge", Histogram: "histogram"}[type(metric)]
    name = metric._name + ("_total" if kind == "counter" else "")
    return _with_unit(name, kind, tuple(metric._labelnames), metric._documentation)


def _with_unit(name: str, kind: str, labels: tuple[str, ...], meaning: str) -> Row:
    last = name.rpartition("_")[2]
    unit = last if last in ("seconds", "bytes") else ""
    return Row(name=name, kind=kind, labels=labels, unit=unit, meaning=meaning)


def _table(title: str, metrics_: Iterable[Row]) -> str:
    lines = [f"\n## {title}\n", "| metric | type | labels | unit | meaning |", "|---|---|---|---|---|"]
    for row in metrics_:
        labels = ", ".join(f"`{label}`" for label in row.labels)
        lines.append(f"| `{row.name}` | {row.kind} | {labels} | {row.unit} | {row.meaning} |")
    return "\n".join(lines) + "\n"


def text() -> str:
    """The whole page."""
    return (
        _HEAD
        + _table("Supervisor", rows(metrics))
        + "\nBeside these: `process_*` of the supervisor itself, by the Prometheus client.\n"
        + _table("Gateway", rows(of_gateway))
    )


if __name__ == "__main__":
    sys.stdout.write(text())
