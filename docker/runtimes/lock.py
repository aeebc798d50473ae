"""Write a runtime's requirements.lock: every version of a working environment, each with its SHA-256.

    python docker/runtimes/lock.py omni-0.30-cpu --environment .runtimes/omni-0.30-cpu

Why not a resolver: vllm declares CUDA libraries that a CPU runtime leaves out on purpose, so no resolver
accepts the set that works. Change the environment with its own pip until the engine's tests pass, then
write down what it holds. Every pin of requirements.in must be among it. Hashes are those of the files that
pip would download for this platform and Python, asked for with pip's own `--report`; nothing is installed.

    python docker/runtimes/lock.py torch-2.4.1-cu124 --torch pytorch

records torch itself and the CUDA libraries that come with it, where the index is reachable.

    python docker/runtimes/lock.py omni-0.30-cu130 --resolve python3.12

lets pip of that Python resolve requirements.in, for a runtime whose authors' own pins are installable.

    python docker/runtimes/lock.py --check

says which locks no longer satisfy their requirements.in; reads files only.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

HERE = Path(__file__).resolve().parent
LEFT_OUT = {"torch", "framekeeper", "pip", "wheel"}
"""torch and framekeeper are steps of their own in install.py; pip and wheel are tools."""

WITH_TORCH = ("nvidia-", "triton")
"""What a CUDA build of torch brings along, by the beginning of its name; installed in torch's own step."""


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
    return {
        name: version
        for name, version in pins(output).items()
        if name not in LEFT_OUT and not name.startswith(WITH_TORCH)
    }


def chosen(python: Path, requirements: list[str], *options: str) -> dict[str, tuple[str, str]]:
    """Version and SHA-256 of each file that pip would install; raises CalledProcessError without one."""
    with tempfile.TemporaryDirectory() as scratch:
        wanted, report = Path(scratch, "wanted.txt"), Path(scratch, "report.json")
        wanted.write_text("".join(f"{line}\n" for line in requirements))
        subprocess.run(
            [
                *(python, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"),
                *("--report", report, "-r", wanted, *options),
            ],
            check=True,
        )
        entries = json.loads(report.read_text())["install"]
    return {
        normal(entry["metadata"]["name"]): (
            entry["metadata"]["version"],
            entry["download_info"]["archive_info"]["hashes"]["sha256"],
        )
        for entry in entries
    }


def write(path: Path, what: str, wheels: dict[str, tuple[str, str]], python: str = "3.11") -> None:
    """A file of requirements, each with its hash."""
    header = (
        f"# Written by docker/runtimes/lock.py; do not edit. Linux x86_64, CPython {python}, {what}.\n"
        f"# Install with: pip install --no-deps --require-hashes -r {path.name}\n"
    )
    lines = [
        f"{name}=={version} \\\n    --hash=sha256:{digest}\n"
        for name, (version, digest) in sorted(wheels.items())
    ]
    path.write_text(header + "".join(lines))


def lock_torch(folder: Path, python: Path, source: str) -> None:
    """Record torch and what comes with it, from the runtime's own index (`pytorch`) or a named source."""
    runtime = tomllib.loads((folder / "runtime.toml").read_text())
    chosen_source = runtime if source == "pytorch" else runtime["torch_sources"][source]
    wanted = [f"torch=={chosen_source['torch']}", *chosen_source.get("torch_packages", [])]
    options = ["--only-binary", ":all:", *([] if chosen_source.get("torch_dependencies") else ["--no-deps"])]
    if "torch_index" in chosen_source:
        options += ["--index-url", chosen_source["torch_index"]]
    wheels = {
        name: wheel
        for name, wheel in chosen(python, wanted, *options).items()
        if name == "torch" or name.startswith(WITH_TORCH)
    }
    write(folder / chosen_source["torch_lock"], f"torch from {source}", wheels, runtime["python"])


def resolve(folder: Path, python: Path) -> None:
    """Write requirements.lock as pip resolves requirements.in; torch is left to its own step."""
    runtime = tomllib.loads((folder / "runtime.toml").read_text())
    files = chosen(python, (folder / "requirements.in").read_text().splitlines(), "--prefer-binary")
    kept = {name: file for name, file in files.items() if name not in LEFT_OUT}
    write(folder / "requirements.lock", "without torch", kept, runtime["python"])


def faults(folder: Path) -> list[str]:
    """What a lock lacks of its requirements.in and runtime.toml, a sentence each; reads no index."""
    runtime = tomllib.loads((folder / "runtime.toml").read_text())
    text = (folder / "requirements.lock").read_text()
    locked = pins(text)
    where = f"{folder.name}/requirements.lock"
    wanted = pins((folder / "requirements.in").read_text())
    torch = wanted.pop("torch", None)
    found = [
        f"{where} has {name}=={locked.get(name)}, requirements.in wants {version}"
        for name, version in wanted.items()
        if locked.get(name) != version
    ]
    if torch and torch != runtime["torch"].partition("+")[0]:
        found.append(f"{folder.name}: requirements.in wants torch=={torch}, runtime.toml {runtime['torch']}")
    for packages in runtime.get("backends", {}).values():
        found += [
            f"{where} has {name}=={locked.get(normal(name))}, runtime.toml wants {version}"
            for name, version in packages.items()
            if locked.get(normal(name)) != version
        ]
    found += [f"{where} pins {name}, which is a step of its own" for name in LEFT_OUT & set(locked)]
    entries = re.split(r"\n(?=[a-z0-9])", text)
    return found + [
        f"{where} has no hash for {entry.split('==')[0]}"
        for entry in entries
        if "==" in entry and not re.search(r"--hash=sha256:[0-9a-f]{64}\b", entry)
    ]


def check() -> int:
    """Say what is wrong with every lock: 0 nothing, else 1."""
    found = [fault for path in sorted(HERE.glob("*/runtime.toml")) for fault in faults(path.parent)]
    sys.stderr.write("".join(f"{fault}\n" for fault in found))
    return 1 if found else 0


def main() -> int:
    """0 when written, 1 when the environment contradicts requirements.in."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("runtime", nargs="?", help="a folder beside this file")
    parser.add_argument("--environment", type=Path, help="virtual environment that works")
    parser.add_argument(
        "--torch", metavar="SOURCE", help="record torch instead: pytorch (its own index) or a torch source"
    )
    parser.add_argument("--resolve", type=Path, metavar="PYTHON", help="let its pip resolve requirements.in")
    parser.add_argument("--check", action="store_true", help="compare every lock with what it is made from")
    arguments = parser.parse_args()
    if arguments.check:
        return check()
    if arguments.runtime is None:
        parser.error("name a runtime")
    folder = HERE / arguments.runtime
    if arguments.torch:
        lock_torch(folder, Path(sys.executable), arguments.torch)
        return 0
    if arguments.resolve:
        resolve(folder, arguments.resolve)
        return 0
    if arguments.environment is None:
        parser.error("--environment, --torch or --resolve is needed")
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
    pinned = [f"{name}=={version}" for name, version in versions.items()]
    write(
        folder / "requirements.lock",
        "without torch",
        chosen(python, pinned, "--only-binary", ":all:", "--no-deps"),
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
