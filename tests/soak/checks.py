"""What must hold after a soak; every check returns its violations in words."""

from __future__ import annotations

import fcntl
import socket
import stat
from collections import defaultdict
from pathlib import Path
from typing import Any

import psutil

import shared_memory
from framekeeper.database import embedded
from framekeeper.engine import leftovers
from framekeeper.media.encode import read_video
from soak import watch
from soak.breakage import Damage
from soak.ledger import FINAL, Ledger
from system import System

#: How a state may change; anything else is a violation. `None` is a new row, `gone` a deleted one.
LEGAL = {
    (None, "queued"),
    ("queued", "in_progress"),
    ("queued", "cancelled"),
    ("in_progress", "queued"),
    *((state, "gone") for state in ("queued", "in_progress", *FINAL)),
    *(("in_progress", state) for state in FINAL),
}
#: After the database is back, pools need so long to notice; after a gateway's end, its successor to listen.
DATABASE_GRACE, GATEWAY_GRACE = 12.0, 8.0
Row = dict[str, Any]


def answers(ledger: Ledger, damage: Damage) -> list[str]:
    """5xx only while the database was away, no answer only while a gateway was."""
    problems = []
    for each in ledger.answers:
        database = damage.around(each.began, each.ended, ("database",), DATABASE_GRACE)
        gateway = damage.around(each.began, each.ended, ("gateway",), GATEWAY_GRACE)
        if each.status >= 500 and not (database and each.status == 503):
            problems.append(f"{each.route} was answered with {each.status} {each.said} without a reason")
        if each.status == 0 and not gateway:
            problems.append(f"{each.route} got no answer ({each.said}) without a reason")
    return problems


def changes(url: str) -> list[str]:
    """Every job changed its state only as it may, and was published once at most."""
    problems = []
    jobs: dict[str, list[Row]] = defaultdict(list)
    for row in watch.rows(url, "SELECT * FROM soak_changes ORDER BY n"):
        jobs[row["id"]].append(row)
    for video_id, found in jobs.items():
        story = " → ".join(f"{row['after']}/{row['attempt']}" for row in found)
        if any((row["before"], row["after"]) not in LEGAL for row in found):
            problems.append(f"{video_id}: illegal change of state: {story}")
        if sum(row["after"] == "completed" for row in found) > 1:
            problems.append(f"{video_id}: completed more than once: {story}")
        starts = [row["attempt"] for row in found if row["after"] == "in_progress"]
        if starts != list(range(1, len(starts) + 1)):
            problems.append(f"{video_id}: attempts are not counted one by one: {story}")
        for row in found:
            if row["after"] == "cancelled" and not row["cancel"]:
                problems.append(f"{video_id}: cancelled without a request: {story}")
            if (row["before"], row["after"]) == ("in_progress", "gone") and not row["deleted"]:
                problems.append(f"{video_id}: gone without a request: {story}")
    return problems


def rows(ledger: Ledger, videos: list[Row]) -> list[str]:
    """Every accepted job is final, or was deleted; what each client was told is still true."""
    problems = [f"{row['id']}: left in {row['state']}" for row in videos if row["state"] not in FINAL]
    problems += [f"{row['id']}: deleted, but its row is there" for row in videos if row["deleted_at"]]
    by_id = {row["id"]: row for row in videos}
    for wish in ledger.wishes.values():
        row = by_id.get(wish.id)
        if row is None:
            if not wish.delete_sent:
                problems.append(f"{wish.id}: was accepted, and is gone")
            continue
        if wish.deleted:
            problems.append(f"{wish.id}: was deleted, and is there ({row['state']})")
        if wish.final and row["state"] != wish.final:
            problems.append(f"{wish.id}: was {wish.final} once, and is {row['state']} now")
        if row["state"] == "cancelled" and not (wish.cancel_sent or wish.delete_sent):
            problems.append(f"{wish.id}: nobody asked to cancel it")
        if row["state"] == "failed" and len(row["error_message"] or "") < 20:
            problems.append(f"{wish.id}: failed without a cause: {row['error_message']!r}")
        if row["state"] == "failed" and row["error_code"] == "engine_failed" and not row["incident_id"]:
            problems.append(f"{wish.id}: failed by an engine without an incident: {row['error_message']!r}")
    return problems


def files(media: Path, videos: list[Row]) -> list[str]:
    """A completed job has its video, thumbnail and sheet, of its last attempt; nobody else has a file."""
    problems = []
    expected: set[str] = set()
    for row in videos:
        if row["state"] != "completed":
            continue
        expected.add(row["id"])
        directory = media / row["id"]
        found = sorted(path.name for path in directory.iterdir()) if directory.exists() else []
        attempt = row["attempt"]
        if (
            found != [f"{attempt}.{each}" for each in ("jpg", "mp4", "sheet.jpg")]
            or row["video_file"] != f"{attempt}.mp4"
        ):
            problems.append(
                f"{row['id']}: completed in attempt {attempt} as {row['video_file']}, has {found}"
            )
        request = row["request"]
        shape = (request["num_frames"], request["height"], request["width"], 3)
        try:
            made = read_video(directory / (row["video_file"] or "none")).shape
        except Exception as error:
            made = f"{type(error).__name__}: {error}"
        if made != shape:
            problems.append(f"{row['id']}: the video is {made} instead of {shape}")
    states = {row["id"]: row["state"] for row in videos}
    for directory in media.iterdir() if media.exists() else ():
        if directory.name not in expected:
            names = sorted(path.name for path in directory.iterdir())
            state = states.get(directory.name, "deleted")
            problems.append(f"{directory.name}: {state}, but has a directory with {names}")
    return problems


def remains(system: System, ports: list[int], database: Path, used: set[str]) -> list[str]:
    """No process, lock, socket, port, shared memory or temporary file outlives the system."""
    problems = []
    home = database.parent
    temporary = system.environment()["TMPDIR"]
    problems += [f"process {_told(pid)} is left" for pid in processes(system)]
    if (server := embedded.running_server(database)) is not None:
        problems.append(f"PostgreSQL {server.pid} is left")
    for path in sorted(home.rglob("*")):
        if stat.S_ISSOCK(path.lstat().st_mode):
            problems.append(f"socket {path.relative_to(home)} is left")
        elif path.suffix == ".lock" or "lock" in path.parent.name:
            problems += _held(path)
    if (sockets := embedded.socket_directory(database)) != database and sockets.exists():
        problems.append(f"{sockets} is left")
    problems += [f"temporary file {path} is left" for path in Path(temporary).rglob("*")]
    for path in system.run_directory.rglob("*"):
        if (path.is_file() or path.is_symlink()) and path.suffix != ".lock":
            problems.append(f"{path.relative_to(home)} is left in the run directory")
    for port in (system.supervisor_port, *ports):
        with socket.socket() as probe:
            probe.settimeout(1)
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                problems.append(f"port {port} is still listened on")
    problems += [f"/dev/shm/{name} is left" for name in shared_memory.left(used)]
    return problems


def processes(system: System) -> set[int]:
    """Every living process of the system: gateways, supervisor, engines, and what those left."""
    marks = [(leftovers.RUN, str(system.run_directory)), ("FRAMEKEEPER_VAR", str(system.directory / "var"))]
    marks.append(("TMPDIR", system.environment()["TMPDIR"]))
    return {pid for variable, value in marks for pid in leftovers.find(variable, value)}


def segments(system: System) -> set[str]:
    """Names in /dev/shm that the system's processes use now; other programs' come and go beside them."""
    return shared_memory.segments(processes(system))


def _held(path: Path) -> list[str]:
    with path.open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return [f"lock {path} is held"]
    return []


def _told(pid: int) -> str:
    try:
        return f"{pid} ({' '.join(psutil.Process(pid).cmdline())[:120]})"
    except psutil.Error:
        return str(pid)
