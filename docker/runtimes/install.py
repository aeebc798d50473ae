"""Build an engine environment from a runtime's lock. Standard library only.

    python docker/runtimes/install.py omni-0.30-cpu --into .runtimes/omni-0.30-cpu

Stages: a virtual environment, torch alone (its exact local version, so that a CUDA build can never be
pulled by accident), everything else with hashes and without dependencies, Framekeeper itself, and an import
of what the engine uses. Safe to run twice and to interrupt: a stamp is written last, an environment without
one is completed, one with an older stamp is made anew. pip reads its usual configuration, and its whole
output goes to a log file. `--until torch` and `--until packages` end after that stage, for layers of an
image; the same command without it goes on from there.

Exit status: 0 installed, 1 a stage failed (the log's tail is shown), 2 this machine cannot do it (Python,
disk space, a directory that is not ours).
"""

# ruff: noqa: T201  A script for people; its output is the progress they watch.

import argparse
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

try:
    import tomllib
except ModuleNotFoundError:
    sys.stderr.write("cannot install: run this script with Python 3.11 or newer\n")
    sys.exit(2)

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parent.parent
STAMP = "framekeeper-runtime.sha256"
STAGES = 5
UNTIL = ("torch", "packages")
GIB = 1 << 30


class CannotInstall(Exception):
    """This machine or the arguments are not fit; exit status 2."""


class StageFailed(Exception):
    """A command of a stage failed; exit status 1."""


class Log:
    """Runs commands into one file and shows one line per stage with the seconds it takes."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock = lock
        self._file = path.open("a")
        self._number = 0
        self._title = ""
        self._began = 0.0

    def begin(self, title: str) -> None:
        """Start the line of the next stage."""
        self._number += 1
        self._title = f"[{self._number}/{STAGES}] {title}"
        self._began = time.monotonic()
        self._file.write(f"\n== {self._title}\n")
        if not sys.stdout.isatty():
            print(self._title, end=" ... ", flush=True)

    def end(self, note: str = "") -> None:
        """Finish the line."""
        seconds = time.monotonic() - self._began
        shown = f"{seconds:.1f} s{f' ({note})' if note else ''}"
        print(f"\r{self._title} ... {shown}" if sys.stdout.isatty() else shown, flush=True)

    def run(self, *command: str | Path, environment: dict[str, str] | None = None) -> str:
        """Run a command to its end; returns what it printed, raises StageFailed."""
        self._file.write(f"$ {' '.join(map(str, command))}\n")
        self._file.flush()
        start = self._file.tell()
        env = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", **(environment or {})}
        # The command inherits the lock: should this script be killed, its pip goes on, and the next run
        # must not start a second one in the same environment.
        with subprocess.Popen(
            command, stdout=self._file, stderr=subprocess.STDOUT, env=env, pass_fds=[self._lock]
        ) as process:
            while True:
                try:
                    status = process.wait(timeout=1.0)
                    break
                except subprocess.TimeoutExpired:
                    if sys.stdout.isatty():
                        print(
                            f"\r{self._title} ... {time.monotonic() - self._began:.0f} s", end="", flush=True
                        )
        with self.path.open("rb") as written:
            written.seek(start)
            output = written.read().decode(errors="replace")
        if status != 0:
            raise StageFailed(output)
        return output


def read_runtime(name: str) -> dict[str, Any]:
    """runtime.toml of a folder beside this file."""
    path = HERE / name / "runtime.toml"
    if not path.is_file():
        known = ", ".join(sorted(folder.parent.name for folder in HERE.glob("*/runtime.toml")))
        raise CannotInstall(f"no runtime {name!r}; there are: {known}")
    return tomllib.loads(path.read_text())


def with_torch_source(runtime: dict[str, Any], source: str | None) -> dict[str, Any]:
    """The runtime with torch from one of its `torch_sources`; None is the runtime's own."""
    if source is None:
        return runtime
    sources = runtime.get("torch_sources", {})
    if source not in sources:
        known = ", ".join(sources) or "none but its own"
        raise CannotInstall(f"{runtime['name']} has no torch source {source!r}; there are: {known}")
    own = {key: value for key, value in runtime.items() if not key.startswith("torch")}
    return own | sources[source]


def find_python(wanted: str, given: str | None) -> str:
    """An interpreter of version `wanted` ("3.11"): the one given, this one, or the one on PATH."""
    for candidate in [given] if given else [sys.executable, f"python{wanted}"]:
        path = shutil.which(candidate)
        if path and _version(path) == wanted:
            return path
    where = given or f"this is {sys.version_info[0]}.{sys.version_info[1]}, and no python{wanted} is on PATH"
    raise CannotInstall(f"this runtime needs Python {wanted} ({where}); install it or pass --python PATH")


def _version(python: str) -> str | None:
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    result = subprocess.run([python, "-c", code], check=False, capture_output=True, text=True)
    return result.stdout.strip() if result.returncode == 0 else None


def fingerprint(name: str, wheel: Path | None, torch_source: str | None = None) -> str:
    """SHA-256 of all that decides what gets installed."""
    digest = hashlib.sha256()
    torch_lock = HERE / name / (with_torch_source(read_runtime(name), torch_source).get("torch_lock") or "-")
    if torch_source is not None:
        digest.update(torch_source.encode())
    if torch_lock.is_file():
        digest.update(torch_lock.read_bytes())
    for path in (HERE / name / "requirements.lock", HERE / name / "runtime.toml"):
        digest.update(path.read_bytes())
    # An editable installation points at this checkout, so the checkout's place is part of it.
    digest.update(wheel.read_bytes() if wheel else os.fsencode(PROJECT))
    return digest.hexdigest()


def prepare(into: Path, python: str, wanted: str, log: Log) -> str:
    """Make the virtual environment, keep a usable half-made one; returns what was done."""
    inside = into / "bin" / "python"
    stale = (into / STAMP).exists()
    if into.exists() and any(into.iterdir()):
        if not (into / "pyvenv.cfg").is_file():
            raise CannotInstall(f"{into} is not empty and not a virtual environment; choose another --into")
        usable = not stale and inside.exists() and _version(str(inside)) == wanted
        if usable and (into / "bin" / "pip").exists():
            return "continued"
    log.run(python, "-m", "venv", "--clear", into)
    return "made anew" if stale else ""


def install_torch(pip: list[str | Path], runtime: dict[str, Any], log: Log) -> str:
    """The exact torch of the runtime: from where pip looks by itself, else from PyTorch's own index.

    With hashes where `torch_lock` was recorded; returns what there is to say about it.
    """
    lock = HERE / runtime["name"] / runtime.get("torch_lock", "")
    locked = lock.is_file()
    wanted: list[str | Path] = ["--require-hashes", "-r", lock] if locked else [f"torch=={runtime['torch']}"]
    if locked or not runtime.get("torch_dependencies"):
        wanted.insert(0, "--no-deps")
    note = "no hash recorded" if "torch_lock" in runtime and not locked else ""
    try:
        log.run(*pip, "install", *wanted)
    except StageFailed as failure:
        if "No matching distribution" not in str(failure) or "torch_index" not in runtime:
            raise
        log.run(*pip, "install", "--index-url", runtime["torch_index"], *wanted)
        return ", ".join(filter(None, ["from PyTorch's index", note]))
    return note


def check(python: Path, runtime: dict[str, Any], log: Log) -> None:
    """Import what the engine imports and compare the versions that matter."""
    backends = runtime.get("backends", {})
    versions = {"torch": runtime["torch"]}
    for packages in backends.values():
        versions.update(packages)
    code = "\n".join(
        [
            "import importlib",
            "from importlib import metadata",
            "if __import__('os').environ['FRAMEKEEPER_DEVICE'] == 'cpu':",
            "    from framekeeper.engine.cpu_platform.torchvision_schema import predefine; predefine()",
            f"for name in {runtime['check']['imports']!r}:",
            "    module, _, function = name.partition(':')",
            "    found = importlib.import_module(module)",
            "    if function: getattr(found, function)()",
            f"for name, wanted in {versions!r}.items():",
            "    found = metadata.version(name.replace('_', '-'))",
            "    assert found == wanted, f'{name} is {found}, the runtime says {wanted}'",
        ]
    )
    log.run(python, "-c", code, environment={"FRAMEKEEPER_DEVICE": runtime["device"]})


def is_current(into: Path, wanted: str) -> bool:
    """Whether the stamp of an installed environment says that nothing changed since."""
    stamp = into / STAMP
    return (into / "bin" / "python").exists() and stamp.is_file() and stamp.read_text().strip() == wanted


def install(
    name: str,
    into: Path,
    given_python: str | None,
    wheel: Path | None,
    torch_source: str | None = None,
    *,
    until: str | None = None,
) -> None:
    """All stages under a lock; returns at once when the stamp says that nothing changed.

    With `until` the stages up to that one, and no stamp: the environment counts as half made.
    """
    runtime = with_torch_source(read_runtime(name), torch_source)
    wanted = fingerprint(name, wheel, torch_source) if until is None else ""
    if until is not None or not is_current(into, wanted):
        interpreter = find_python(runtime["python"], given_python)
        into.parent.mkdir(parents=True, exist_ok=True)
        with (into.parent / f".{into.name}.lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                print("another installation into this directory is running; waiting for it", flush=True)
                fcntl.flock(lock, fcntl.LOCK_EX)
            if until is not None or not is_current(into, wanted):
                log = Log(into.parent / f"{into.name}.log", lock.fileno())
                try:
                    run_stages(runtime, into, interpreter, wheel, log, until=until)
                except StageFailed as failure:
                    tail = "\n".join(str(failure).rstrip().splitlines()[-15:])
                    told = f"\n\n{tail}\n\nthe whole output is in {log.path}"
                    if "No space left on device" in str(failure):
                        raise CannotInstall(f"the disk is full{told}") from failure
                    raise StageFailed(told) from failure
                if until is not None:
                    return
                (into / STAMP).write_text(wanted + "\n")
    print(f"{name} is installed in {into}")


def run_stages(
    runtime: dict[str, Any],
    into: Path,
    interpreter: str,
    wheel: Path | None,
    log: Log,
    *,
    until: str | None = None,
) -> None:
    """The five stages, each of which may be repeated; raises StageFailed or CannotInstall."""
    name = runtime["name"]
    inside = into / "bin" / "python"
    pip: list[str | Path] = [inside, "-m", "pip"]
    free = shutil.disk_usage(into.parent).free
    if free < runtime["disk_gib"] * GIB and not into.exists():
        raise CannotInstall(
            f"{into.parent} has {free / GIB:.1f} GiB free, {name} needs {runtime['disk_gib']} GiB"
        )
    log.begin(f"environment, Python {runtime['python']}")
    log.end(prepare(into, interpreter, runtime["python"], log))
    log.begin(f"torch {runtime['torch']}")
    log.end(install_torch(pip, runtime, log))
    if until == "torch":
        return
    log.begin("packages, each with its hash")
    log.run(*pip, "install", "--no-deps", "--require-hashes", "-r", HERE / name / "requirements.lock")
    log.end()
    if until == "packages":
        return
    log.begin("framekeeper")
    source: list[str | Path] = [wheel] if wheel else ["--no-build-isolation", "-e", PROJECT]
    log.run(*pip, "install", "--no-deps", "--force-reinstall", *source)
    log.end()
    log.begin("imports")
    check(inside, runtime, log)
    log.end()


def main() -> int:
    """Exit status as in the module's docstring."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("runtime", help="name of a folder beside this file")
    parser.add_argument("--into", type=Path, required=True, help="directory of the virtual environment")
    parser.add_argument("--python", help="interpreter to build it with (default: this one or one on PATH)")
    parser.add_argument(
        "--wheel", type=Path, help="framekeeper as a wheel (default: editable, this checkout)"
    )
    parser.add_argument(
        "--torch-source", help="one of the runtime's torch_sources instead of its own torch, for tests"
    )
    parser.add_argument("--until", choices=UNTIL, help="end after this stage, for layers of an image")
    arguments = parser.parse_args()
    try:
        install(
            arguments.runtime,
            arguments.into.absolute(),
            arguments.python,
            arguments.wheel,
            arguments.torch_source,
            until=arguments.until,
        )
    except CannotInstall as reason:
        print(f"cannot install: {reason}", file=sys.stderr)
        return 2
    except StageFailed as failure:
        print(f"failed{failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted; run the same command again to go on", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
