"""Write a runtime's requirements.lock: every version of a working environment, each with its SHA-256.

    python docker/runtimes/lock.py omni-0.30-cpu --environment .runtimes/omni-0.30-cpu

Why not a resolver: vllm declares CUDA libraries that a CPU runtime leaves out on purpose, so no resolver
accepts the set that works. Change the environment with its own pip until the engine's tests pass, then
write down what it holds. Every pin of requirements.in must be among it. Hashes are those of the files that
pip would download for this platform and Python, asked for with pip's own `--report`; nothing is installed.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
LEFT_OUT = {"torch", "framekeeper", "pip", "wheel"}
"""torch and framekeeper are steps of their own in install.py; pip and wheel are tools."""


def normal(name: str) -> str:
    """A distribution's name as PEP 503 compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(text: str) -> dict[str, str]:
    """`name==version` lines as a mapping of normal names; anything else is skipped."""
    found = re.findall(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", text, flags=re.MULTILINE)
    return {normal(name): version for name, version in found}


def installed(python: Path) -> dict[str, str]:
    """Every distribution of an environment with its version."""
    command: list[str | Path] = [
        python,
        "-m",
        "pip",
        "list",
        "--format=freeze",
        "--disable-pip-version-check",
    ]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return {name: version for name, version in pins(output).items() if name not in LEFT_OUT}


def hashes(python: Path, versions: dict[str, str]) -> dict[str, str]:
    """SHA-256 of the wheel that pip chooses for each pin; raises CalledProcessError if one has none."""
    with tempfile.TemporaryDirectory() as scratch:
        wanted, report = Path(scratch, "wanted.txt"), Path(scratch, "report.json")
        wanted.write_text("".join(f"{name}=={version}\n" for name, version in versions.items()))
        subprocess.run(
            [
                *(python, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"),
                *("--no-deps", "--only-binary", ":all:", "--report", report, "-r", wanted),
            ],
            check=True,
        )
        entries = json.loads(report.read_text())["install"]
    return {
        normal(entry["metadata"]["name"]): entry["download_info"]["archive_info"]["hashes"]["sha256"]
        for entry in entries
    }


def main() -> int:
    """0 when written, 1 when the environment contradicts requirements.in."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("runtime", help="a folder beside this file")
    parser.add_argument("--environment", type=Path, required=True, help="virtual environment that works")
    arguments = parser.parse_args()
    folder = HERE / arguments.runtime
    python = arguments.environment / "bin" / "python"
    versions = installed(python)
    wrong = {
        name: version
        for name, version in pins((folder / "requirements.in").read_text()).items()
        if versions.get(name) != version
    }
    for name, version in wrong.items():
        sys.stderr.write(
            f"requirements.in wants {name}=={version}, the environment has {versions.get(name)}\n"
        )
    if wrong:
        return 1
    sums = hashes(python, versions)
    lines = [f"{name}=={versions[name]} \\\n    --hash=sha256:{sums[name]}\n" for name in sorted(versions)]
    header = (
        "# Written by docker/runtimes/lock.py; do not edit. Linux x86_64, CPython 3.11, without torch.\n"
        "# Install with: pip install --no-deps --require-hashes -r requirements.lock\n"
    )
    (folder / "requirements.lock").write_text(header + "".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
