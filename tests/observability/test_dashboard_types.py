"""The dashboard against Grafana's own types, of the version that compose.yaml starts. Needs npm and 25 MB."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

PROJECT = Path(__file__).resolve().parents[2]
DASHBOARD = PROJECT / "configs" / "grafana" / "dashboards" / "framekeeper.json"
TYPES = "./node_modules/@grafana/schema/dist/esm/raw/dashboard/x/dashboard_types.gen"


@pytest.fixture(scope="module")
def grafana(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with Grafana's types and the compiler that checks them."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("needs node and npm")
    [version] = re.findall(r"image: grafana/grafana:([\d.]+)", (PROJECT / "compose.yaml").read_text())
    place = tmp_path_factory.mktemp("grafana")
    packages = [f"@grafana/schema@{version}", "typescript@5.9.3"]
    command = [npm, "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(place), *packages]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    if done.returncode:
        pytest.skip(f"npm cannot install {packages}: {done.stderr[-300:]}")
    return place


def complaints(grafana: Path, dashboard: dict[str, Any]) -> str:
    """What TypeScript says to a dashboard that is written down as Grafana's `Dashboard`."""
    # Beside it, since `Dashboard` also allows panels of the years before rows, where any key goes.
    panels = json.dumps(dashboard["panels"])
    rest = json.dumps({key: value for key, value in dashboard.items() if key != "panels"})
    (grafana / "dashboard.ts").write_text(
        f"import type {{Dashboard, Panel, RowPanel}} from '{TYPES}';\n"
        f"export const panels: Array<Panel | RowPanel> = {panels};\n"
        f"export const rest: Omit<Dashboard, 'panels'> = {rest};\n"
    )
    options = ["--noEmit", "--strict", "--skipLibCheck", "--module", "esnext", "--target", "es2022"]
    command = ["node_modules/.bin/tsc", *options, "--moduleResolution", "bundler", "dashboard.ts"]
    return subprocess.run(command, cwd=grafana, capture_output=True, text=True, check=False).stdout


def test_the_dashboard_is_of_grafanas_own_types(grafana: Path) -> None:
    assert complaints(grafana, json.loads(DASHBOARD.read_text(encoding="utf-8"))) == ""


@pytest.mark.parametrize(("key", "value"), [("titel", "Queue"), ("gridPos", {"x": "0"}), ("type", 7)])
def test_a_wrong_key_or_value_would_be_told(grafana: Path, key: str, value: Any) -> None:
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    dashboard["panels"][-1][key] = value
    assert "error TS" in complaints(grafana, dashboard)
