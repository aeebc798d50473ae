"""The first process of an engine's group: sees to it that nothing of the group outlives the supervisor.

    python warden.py LIFELINE_FD COMMAND...

It starts the command and waits. When the command ends, or when the lifeline (a pipe that only the supervisor
holds open) closes, it kills every descendant and ends the way the command did. As a subreaper it is the
parent of every orphan of the group, so that processes which left the process group or the session are found
as well. It is small on purpose and uses the standard library only: what could break is in the worker.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

if __package__:
    from framekeeper.engine.parent_death import adopt_orphans, die_with_parent
else:  # started by path, so that no package has to be imported first
    sys.path.insert(0, str(Path(__file__).parent))
    from parent_death import (  # type: ignore[import-not-found,no-redef]
        adopt_orphans,
        die_with_parent,
    )

#: Seconds between two looks at what still lives.
LOOK_SECONDS = 0.02
#: How many looks Python's resource trackers have to remove shared memory that the killed processes left: two
#: seconds at least. Counted, not timed, because trackers of a machine that was stopped were stopped with it.
TRACKER_LOOKS = 100


def descendants(root: int) -> dict[int, str]:
    """Every living descendant of a process, with its command line (from /proc)."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if fields[0] != "Z":
                    parents[int(entry.name)] = int(fields[1])
    found: dict[int, str] = {}
    grown = True
    while grown:
        grown = False
        for pid, parent in parents.items():
            if pid not in found and (parent == root or parent in found):
                command = ""
                with contextlib.suppress(OSError):
                    command = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
                found[pid] = command
                grown = True
    return found


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def kill_descendants() -> None:
    """SIGKILL all descendants and wait until they are gone.

    Resource trackers go last: they end by themselves when the processes they served are dead, after removing
    those processes' shared memory.
    """
    patience = TRACKER_LOOKS
    empty = 0
    while empty < 2:
        living = descendants(os.getpid())
        # /proc is not read in one moment: a child seen before its parent died, and the parent after, hang in
        # the air for one reading. The next one shows the child as ours.
        empty = empty + 1 if not living else 0
        doomed = [pid for pid, command in living.items() if "resource_tracker" not in command]
        if living and not doomed:
            patience -= 1
            if patience < 0:
                doomed = list(living)
        for pid in doomed:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(LOOK_SECONDS)
        _reap()


def _end_like(status: int) -> None:
    """End this process as the command ended: same exit code, or same signal."""
    if status >= 0:
        os._exit(status)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if -status != signal.SIGKILL:
        signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)
    os._exit(1)


def main(arguments: list[str]) -> None:
    """Run the command under guard; does not return."""
    lifeline, command = int(arguments[0]), arguments[1:]
    adopt_orphans()
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        # Only the lifeline and the command's end count. The command would inherit SIG_IGN, not a handler.
        signal.signal(name, lambda *_: None)
    passed = [int(fd) for fd in os.environ.get("FRAMEKEEPER_PASS_FDS", "").split(",") if fd]
    child = subprocess.Popen(
        command,
        pass_fds=passed,
        preexec_fn=partial(die_with_parent, os.getpid()),  # noqa: PLW1509 - this process has one thread
    )
    for fd in passed:
        os.close(fd)
    pidfd = os.pidfd_open(child.pid)
    select.select([lifeline, pidfd], [], [])
    status = child.poll()
    kill_descendants()
    _end_like(-signal.SIGKILL if status is None else status)


if __name__ == "__main__":
    main(sys.argv[1:])
