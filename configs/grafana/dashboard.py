"""Grafana's dashboard, as code.

python configs/grafana/dashboard.py > configs/grafana/dashboards/framekeeper.json

The format is that of Grafana's dashboard JSON
(https://grafana.com/docs/grafana/latest/dashboards/build-dashboards/view-dashboard-json-model/).
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import Any

DATASOURCE = {"type": "prometheus", "uid": "framekeeper-prometheus"}
WIDTH = 24


@dataclass(frozen=True, kw_only=True)
class Panel:
    """A graph of some queries; `queries` are pairs of PromQL and the legend's form. `width` is in 24ths."""

    title: str
    queries: tuple[tuple[str, str], ...]
    unit: str = "short"
    width: int = 8
    kind: str = "timeseries"
    stacked: bool = False
    meaning: str = ""


def _percentile(metric: str, share: float, by: str = "") -> str:
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({share}, sum by ({labels}) (rate({metric}_bucket[$__rate_interval])))"


def _mean(metric: str) -> str:
    return f"sum({metric}_sum) / sum({metric}_count)"


def _rate(metric: str, by: str) -> str:
    return f"sum by ({by}) (rate({metric}[$__rate_interval]))"


def _one(title: str, query: str, unit: str = "short", legend: str = "", meaning: str = "") -> Panel:
    return Panel(title=title, queries=((query, legend),), unit=unit, width=4, kind="stat", meaning=meaning)


ROWS: tuple[tuple[str, tuple[Panel, ...]], ...] = (
    (
        "Now",
        (
            _one("Engines that serve", 'sum(framekeeper_engine_state{state=~"ready|busy|degraded"})'),
            _one("Videos waiting", "sum(max by (model, shape_class) (framekeeper_queue_depth))"),
            _one("Oldest waits", "max(framekeeper_queue_oldest_age_seconds)", "s"),
            _one("Wait of a new one", "max(framekeeper_queue_seconds)", "s", meaning="Estimated."),
            _one(
                "Failed, last hour",
                'sum(increase(framekeeper_videos_finished_total{state="failed"}[1h]))',
                meaning="Without those that were cancelled.",
            ),
            _one("Incidents, last day", "sum(increase(framekeeper_incidents_total[1d]))"),
        ),
    ),
    (
        "Jobs",
        (
            Panel(
                title="Waiting, by shape class",
                queries=(
                    (
                        "max by (model, shape_class) (framekeeper_queue_depth)",
                        "{{model}} 2^{{shape_class}} tokens",
                    ),
                ),
                stacked=True,
            ),
            Panel(
                title="Age of the oldest",
                queries=(
                    ("max by (model) (framekeeper_queue_oldest_age_seconds)", "{{model}}"),
                    ("max by (model) (framekeeper_queue_seconds)", "{{model}}, estimate for a new one"),
                    ("max by (model) (framekeeper_model_unserved_seconds)", "{{model}}, without an engine"),
                    (_percentile("framekeeper_queue_wait_seconds", 0.9), "waited, 90 % under"),
                ),
                unit="s",
            ),
            Panel(
                title="Finished a minute",
                queries=(
                    (
                        f"60 * {_rate('framekeeper_videos_finished_total', 'state, reason')}",
                        "{{state}} {{reason}}",
                    ),
                ),
                stacked=True,
            ),
            Panel(
                title="Accepted and refused a minute",
                queries=(
                    (f"60 * {_rate('framekeeper_videos_accepted_total', 'model')}", "accepted {{model}}"),
                    (f"60 * {_rate('framekeeper_admission_refused_total', 'reason')}", "refused {{reason}}"),
                    (
                        f"60 * {_rate('framekeeper_attempts_repeated_total', 'instance')}",
                        "repeated {{instance}}",
                    ),
                ),
            ),
            Panel(
                title="Seconds in each phase",
                queries=(
                    (
                        f"{_rate('framekeeper_phase_seconds_sum', 'phase')} / "
                        f"{_rate('framekeeper_phase_seconds_count', 'phase')}",
                        "{{phase}}, mean",
                    ),
                ),
                unit="s",
            ),
            Panel(
                title="Seconds of a denoising step",
                queries=(
                    (
                        _percentile("framekeeper_denoising_step_seconds", 0.5, "profile, shape_class"),
                        "{{profile}} 2^{{shape_class}}, median",
                    ),
                    (
                        _percentile("framekeeper_denoising_step_seconds", 0.99, "profile, shape_class"),
                        "{{profile}} 2^{{shape_class}}, 99 % under",
                    ),
                ),
                unit="s",
            ),
        ),
    ),
    (
        "Engines",
        (
            Panel(
                title="State",
                queries=(("max by (engine, state) (framekeeper_engine_state) == 1", "{{engine}} {{state}}"),),
                width=12,
            ),
            Panel(
                title="Rung", queries=(("max by (engine) (framekeeper_engine_rung)", "{{engine}}"),), width=6
            ),
            Panel(
                title="Videos being made",
                queries=(("max by (model) (framekeeper_videos_in_progress)", "{{model}}"),),
                width=6,
            ),
            Panel(
                title="Incidents by cause, an hour",
                queries=(
                    ("sum by (signature) (increase(framekeeper_incidents_total[1h]))", "{{signature}}"),
                ),
            ),
            Panel(
                title="Starts by result, restarts, an hour",
                queries=(
                    (
                        "sum by (engine, result) (increase(framekeeper_engine_starts_total[1h]))",
                        "{{engine}} {{result}}",
                    ),
                    (
                        "sum by (engine) (increase(framekeeper_engine_restarts_total[1h]))",
                        "{{engine}} restarts",
                    ),
                ),
            ),
            Panel(
                title="Start, warm-up, ready again",
                queries=(
                    (
                        _mean("framekeeper_engine_start_seconds"),
                        "start to ready, mean",
                    ),
                    (
                        _mean("framekeeper_engine_warm_up_seconds"),
                        "warm-up, mean",
                    ),
                    (
                        _mean("framekeeper_incident_ready_again_seconds"),
                        "end to ready again, mean",
                    ),
                ),
                unit="s",
            ),
            Panel(
                title="Memory of the cards",
                queries=(
                    ("framekeeper_device_memory_used_bytes", "{{device}} {{by}}"),
                    ("framekeeper_device_memory_bytes", "{{device}} in all"),
                ),
                unit="bytes",
                width=12,
            ),
            Panel(
                title="Memory of the engines",
                queries=(
                    ("framekeeper_engine_resident_bytes", "{{engine}} on the host"),
                    ("framekeeper_engine_allocated_bytes", "{{engine}} allocator"),
                ),
                unit="bytes",
            ),
            Panel(
                title="Compiled modules, cache",
                queries=(
                    ("framekeeper_engine_compiled_modules", "{{engine}} transformer {{transformer}}"),
                    ("framekeeper_engine_compile_cache_files", "{{engine}} cache files {{origin}}"),
                ),
                width=4,
                meaning="0 is a transformer that runs uncompiled; right where the profile says compile: off. "
                "A start whose code was in the cache makes no files.",
            ),
        ),
    ),
    (
        "Gateway",
        (
            Panel(
                title="Requests a second",
                queries=(
                    (_rate("framekeeper_http_requests_total", "route, status"), "{{route}} {{status}}"),
                ),
                unit="reqps",
            ),
            Panel(
                title="Seconds to answer",
                queries=(
                    (_percentile("framekeeper_http_request_seconds", 0.5), "median"),
                    (_percentile("framekeeper_http_request_seconds", 0.99), "99 % under"),
                ),
                unit="s",
            ),
            Panel(
                title="Open requests and listeners",
                queries=(
                    ("sum(framekeeper_http_requests_in_flight)", "requests"),
                    ("sum(framekeeper_event_listeners)", "listeners to events"),
                ),
            ),
            Panel(
                title="Webhooks",
                queries=(
                    (
                        f"60 * {_rate('framekeeper_webhook_deliveries_total', 'result')}",
                        "{{result}} a minute",
                    ),
                    ("max(framekeeper_webhooks_waiting)", "waiting"),
                ),
            ),
            Panel(
                title="Disk of the videos",
                queries=(
                    ("max(framekeeper_media_bytes)", "videos"),
                    ("min by (instance) (framekeeper_media_free_bytes)", "{{instance}} free"),
                ),
                unit="bytes",
            ),
            Panel(
                title="Removed by retention, an hour",
                queries=(
                    ("sum by (reason) (increase(framekeeper_retention_removed_total[1h]))", "{{reason}}"),
                ),
            ),
            Panel(
                title="Scraped, database",
                queries=(
                    ('up{job=~"framekeeper-.*"}', "{{job}} {{instance}}"),
                    ("min by (instance) (framekeeper_database_up)", "database, seen by {{instance}}"),
                ),
                width=12,
            ),
            Panel(
                title="Versions",
                queries=(("max by (program, version) (framekeeper_build_info)", "{{program}} {{version}}"),),
                width=6,
                kind="stat",
            ),
            Panel(
                title="Engines' profiles",
                queries=(
                    (
                        "max by (engine, profile, model, runtime) (framekeeper_engine_info)",
                        "{{engine}}: {{model}}, {{profile}}, {{runtime}}",
                    ),
                ),
                width=6,
                kind="stat",
            ),
        ),
    ),
)


def dashboard() -> dict[str, Any]:
    """The whole dashboard as JSON's values."""
    panels: list[dict[str, Any]] = []
    top = 0
    for title, row in ROWS:
        panels.append(
            {
                "id": len(panels) + 1,
                "type": "row",
                "title": title,
                "collapsed": False,
                "panels": [],
                "gridPos": {"x": 0, "y": top, "w": WIDTH, "h": 1},
            }
        )
        top += 1
        left, height = 0, 0
        for panel in row:
            if left + panel.width > WIDTH:
                left, top = 0, top + height
            height = 4 if row[0].kind == "stat" else 8
            place = {"x": left, "y": top, "w": panel.width, "h": height}
            panels.append(_panel(panel, len(panels) + 1, place))
            left += panel.width
        top += height
    return {
        "uid": "framekeeper",
        "title": "Framekeeper",
        "tags": ["framekeeper"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "15s",
        "time": {"from": "now-3h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": []},
        "annotations": {"list": []},
        "links": [],
        "panels": panels,
    }


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    options: dict[str, Any] = {"legend": {"displayMode": "list", "placement": "bottom", "showLegend": True}}
    custom: dict[str, Any] = {"stacking": {"mode": "normal" if panel.stacked else "none"}, "fillOpacity": 10}
    if panel.kind == "stat":
        legends = any(legend for _, legend in panel.queries)
        options = {"reduceOptions": {"calcs": ["lastNotNull"]}, "textMode": "name" if legends else "auto"}
        custom = {}
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.meaning,
        "datasource": DATASOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "custom": custom}, "overrides": []},
        "options": options,
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": DATASOURCE,
                "expr": query,
                "legendFormat": legend or "__auto",
            }
            for index, (query, legend) in enumerate(panel.queries)
        ],
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(dashboard(), indent=2) + "\n")
