"""Reading this host: each thing once, nothing of it judged, and nothing changed."""

from __future__ import annotations

import os
import platform
import re
import resource
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from framekeeper.doctor.caches import damaged
from framekeeper.doctor.readings import QUERY, Answer, Disk, Readings
from framekeeper.profiles import program

_KIB = 1024
_SECONDS = 20.0
HUNG = -1
"""Status of a program that gave no answer in time."""
_KEPT = re.compile(
    r"(TORCH|PYTORCH_|CUDA_|NCCL_|TRITON_|VLLM_|OMP_|DIFFUSION_|HF_HUB_OFFLINE|LD_LIBRARY_PATH)"
)
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD")
_CGROUP = Path("/sys/fs/cgroup")
_LOG_CHARACTERS = 20_000


def ask(*command: str) -> Answer:
    """Run a program that only answers; both of its outputs together. Waits `_SECONDS` at most."""
    try:
        status, out, err = program.ask(command, _SECONDS)
    except program.NoAnswer:
        return Answer(status=HUNG, text=f"no answer in {_SECONDS:.0f} s")
    except OSError:
        return Answer()
    return Answer(status=status, text=(out + err).strip())


def read_host(
    *,
    media: Path,
    caches: Path,
    installed: dict[str, str],
    engine: Path,
    environment: dict[str, str],
    cards: bool,
    fast: bool = False,
) -> Readings:
    """Read this host. `engine` is the prefix of the engine's environment; `cards`: ask for them, too.

    `fast` leaves out the daemons that may take their time: Docker's and the clock's.
    """
    return Readings.model_validate(
        {
            **(_cards() if cards else {}),
            **_memory(),
            **_container(fast),
            "locked": _limit(resource.RLIMIT_MEMLOCK),
            "open_files": _limit(resource.RLIMIT_NOFILE),
            "cpu_count": len(os.sched_getaffinity(0)),
            "media": _disk(media),
            "caches": _disk(caches),
            "damaged": damaged(caches),
            "now": time.time(),
            "clock_synchronized": None if fast else _synchronized(),
            "compiler": next(
                (found for name in ("gcc", "clang", "cc") if (found := shutil.which(name))), None
            ),
            "python_headers": _headers(engine),
            "installed": installed,
            "environment": {
                name: value
                for name, value in environment.items()
                if _KEPT.match(name) and not _SECRET.search(name)
            },
            "user": os.getuid(),
        }
    )


def _cards() -> dict[str, Any]:
    form = "--format=csv,noheader,nounits"
    driver = Path("/proc/driver/nvidia").exists() or shutil.which("nvidia-smi")
    cards = ask("nvidia-smi", f"--query-gpu={','.join(QUERY)}", form)
    if cards.status == HUNG:
        # It would hang again, and each time for as long.
        return {"cards": cards, "summary": cards, "kernel_log": _kernel_log()}
    return {
        "cards": cards,
        "summary": ask("nvidia-smi") if driver else Answer(),
        "processes": ask("nvidia-smi", "--query-compute-apps=gpu_uuid,pid,process_name,used_memory", form),
        "fabric": _fabric(ask("nvidia-smi", "-q").text) if driver else (),
        "kernel_log": _kernel_log(),
    }


def _kernel_log() -> str | None:
    """What the NVIDIA driver wrote into the kernel's log, None where this account may not read it."""
    for command in (("dmesg",), ("journalctl", "--dmesg", "--no-pager", "--quiet", "--boot")):
        answer = ask(*command)
        if answer.status == 0 and answer.text:
            return "\n".join(line for line in answer.text.splitlines() if "NVRM" in line)[-_LOG_CHARACTERS:]
    return None


def _container(fast: bool) -> dict[str, Any]:
    return {
        "kernel": platform.release(),
        "container": Path("/.dockerenv").exists() or Path("/run/.containerenv").exists(),
        "docker": Answer()
        if fast
        else ask("docker", "info", "--format", "{{.ServerVersion}} {{.OperatingSystem}}"),
        "toolkit": Answer() if fast else ask("nvidia-ctk", "--version"),
    }


def _memory() -> dict[str, Any]:
    shm = Path("/dev/shm")  # noqa: S108
    space = shutil.disk_usage(shm) if shm.is_dir() else None
    limit, used = _cgroup("memory.max"), _cgroup("memory.current")
    available = [_meminfo("MemAvailable")]
    if limit is not None and used is not None:
        # Files in memory count as used and go when memory is wanted.
        cached = re.search(r"^inactive_file (\d+)", _text(_CGROUP / "memory.stat"), re.MULTILINE)
        available.append(limit - used + (int(cached[1]) if cached else 0))
    return {
        "memory_total": _meminfo("MemTotal"),
        "memory_limit": limit,
        "memory_available": min((size for size in available if size is not None), default=None),
        "shm_total": space.total if space else None,
        "shm_free": space.free if space else None,
    }


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""


def _meminfo(name: str) -> int | None:
    match = re.search(rf"^{name}:\s*(\d+) kB", _text(Path("/proc/meminfo")), re.MULTILINE)
    return int(match[1]) * _KIB if match else None


def _cgroup(name: str) -> int | None:
    """A number of the control group, version 2 or 1; None for "max" and where there is none."""
    older = {"memory.max": "memory.limit_in_bytes", "memory.current": "memory.usage_in_bytes"}[name]
    for path in (_CGROUP / name, _CGROUP / "memory" / older):
        with suppress(ValueError):
            return int(_text(path))
    return None


def _fabric(text: str) -> tuple[str, ...]:
    """States of the fabric, which only cards behind NVSwitch have."""
    return tuple(re.findall(r"Fabric\s*\n\s*State\s*:\s*(.+)", text))


def _limit(kind: int) -> int | None:
    soft = resource.getrlimit(kind)[0]
    return None if soft == resource.RLIM_INFINITY else soft


def _disk(path: Path) -> Disk:
    # The nearest that exists: where it is no directory, nothing can be made below it.
    nearest = next(each for each in (path, *path.absolute().parents) if os.path.lexists(each))
    there = next(each for each in (path, *path.absolute().parents) if _is_directory(each))
    status = there.stat()
    same = there == path
    return Disk(
        path=path,
        free=shutil.disk_usage(there).free,
        writable=_is_directory(nearest) and os.access(there, os.W_OK | os.X_OK),
        owner=status.st_uid if same else None,
        mode=status.st_mode & 0o777 if same else None,
    )


def _is_directory(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # below a directory of somebody else's
        return False


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        return False


def _synchronized() -> bool | None:
    answer = ask("timedatectl", "show", "--property=NTPSynchronized", "--value")
    return {"yes": True, "no": False}.get(answer.text) if answer.status == 0 else None


def _headers(engine: Path) -> bool | None:
    """Whether Python.h of the engine's interpreter is there; None where there is no such environment."""
    bases = [engine]
    try:
        text = (engine / "pyvenv.cfg").read_text(encoding="utf-8")
    except OSError:
        text = ""
    if home := re.search(r"^home\s*=\s*(.+)$", text, re.MULTILINE):
        bases.append(Path(home[1].strip()).parent)
    libraries = sorted(path.name for path in engine.glob("lib/python3.*"))
    if not libraries:
        return None
    return any(_is_file(base / "include" / libraries[-1] / "Python.h") for base in bases)
