"""What is generated or configured about metrics: fresh, and true about what is exported."""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from framekeeper.metrics import document

PROJECT = Path(__file__).resolve().parents[2]
PROMETHEUS = PROJECT / "configs" / "prometheus"
DASHBOARD = PROJECT / "configs" / "grafana" / "dashboards" / "framekeeper.json"
needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="needs promtool; `make test-observability` installs it"
)


def documented() -> set[str]:
    """Every name a query may use: a histogram has three."""
    names = set()
    for row in re.findall(r"^\| `(\w+)` \| (\w+) \|", document.text(), re.MULTILINE):
        name, kind = row
        names |= {f"{name}_{end}" for end in ("bucket", "sum", "count")} if kind == "histogram" else {name}
    return names


def used(text: str) -> set[str]:
    return set(re.findall(r"\bframekeeper_\w+", text))


def rules(name: str) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((PROMETHEUS / name).read_text(encoding="utf-8"))
    return content


def test_the_page_about_metrics_is_fresh() -> None:
    assert (PROJECT / "docs" / "metrics.md").read_text(encoding="utf-8") == document.text()


def test_every_metric_says_what_it_means_and_its_name_ends_as_prometheus_wants() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \|.*\| (.+) \|$", document.text(), re.MULTILINE)
    assert len(rows) > 35
    for name, kind, meaning in rows:
        assert name.startswith("framekeeper_")
        assert (kind == "counter") == name.endswith("_total"), name
        assert kind != "histogram" or name.endswith(("_seconds", "_bytes")), name
        assert meaning.endswith("."), name


def test_the_dashboard_is_fresh() -> None:
    code = runpy.run_path(str(PROJECT / "configs" / "grafana" / "dashboard.py"))
    assert json.loads(DASHBOARD.read_text(encoding="utf-8")) == code["dashboard"]()


def test_panels_lie_beside_one_another_and_have_their_own_ids() -> None:
    panels = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells


@pytest.mark.parametrize("path", [PROMETHEUS / "alerts.yml", DASHBOARD], ids=lambda path: path.name)
def test_only_metrics_that_exist_are_used(path: Path) -> None:
    found = used(path.read_text(encoding="utf-8"))
    assert len(found) > 10
    assert found <= documented()


def test_every_metric_is_on_the_dashboard() -> None:
    shown = used(DASHBOARD.read_text(encoding="utf-8"))
    stems = {re.sub(r"_(bucket|sum|count)$", "", name) for name in shown}
    assert {re.sub(r"_(bucket|sum|count)$", "", name) for name in documented()} <= stems


def test_every_alert_is_tested_and_says_what_to_do() -> None:
    alerts = rules("alerts.yml")["groups"][0]["rules"]
    tested = {
        case["alertname"]
        for test in rules("alerts_test.yml")["tests"]
        for case in test["alert_rule_test"]
        if case["exp_alerts"]
    }
    assert {alert["alert"] for alert in alerts} == tested
    for alert in alerts:
        assert alert["labels"]["severity"] in ("critical", "warning")
        assert set(alert["annotations"]) == {"summary", "action"}


def test_what_the_alerts_advise_are_commands_that_exist() -> None:
    text = (PROMETHEUS / "alerts.yml").read_text(encoding="utf-8")
    text = text.replace("{{ $labels.engine }}", "host/0")
    advised = set(re.findall(r"framekeeper ((?:engines|incidents|doctor)[a-z0-9/ ]*)", text))
    assert len(advised) > 2
    environment = os.environ | {"FRAMEKEEPER_DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none"}
    for words in advised - {"doctor"}:
        command = [sys.executable, "-m", "framekeeper", *words.split()]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        assert (done.returncode, "Usage" in done.stderr) == (1, False), words  # only the database is missing


@needs_promtool
def test_promtool_accepts_the_configuration_and_the_alerts_do_what_their_tests_say() -> None:
    for arguments in (["check", "config", "prometheus.yml"], ["test", "rules", "alerts_test.yml"]):
        done = subprocess.run(
            ["promtool", *arguments], cwd=PROMETHEUS, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_compose_scrapes_the_ports_that_the_programs_listen_on() -> None:
    scraped = {
        each["job_name"]: each["static_configs"][0]["targets"]
        for each in rules("prometheus.yml")["scrape_configs"]
    }
    assert scraped == {"framekeeper-gateway": ["gateway:8000"], "framekeeper-supervisor": ["engine:8001"]}
