"""One worker process with everything around it: warden, channel, log, end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections import deque
from pathlib import Path
from uuid import uuid4

import structlog

from framekeeper.engine import leftovers
from framekeeper.engine.channel import Channel
from framekeeper.engine.exit import Exit
from framekeeper.engine.protocol import FromChild, decode_from_child

log = structlog.get_logger()

WARDEN = Path(__file__).with_name("warden.py")
#: Lines of the engine's output that are kept in memory for the sentence about its end.
TAIL = 200
#: A log above this size is put aside, as at a start: an engine may live for months.
LOG_BYTES = 20 * 1024 * 1024
#: How long a group has after its end was ordered; SIGKILL needs milliseconds, a driver's teardown seconds.
KILL_SECONDS = 20.0
#: What a hung group gets to write its stacks, and then to end by itself.
STACK_SECONDS = 0.5
TERM_SECONDS = 2.0


class WorkerProcess:
    """A started worker. Its process group is gone when `wait` returns."""

    def __init__(
        self,
        warden: asyncio.subprocess.Process,
        channel: Channel[FromChild],
        lifeline: int,
        mark: str,
        log_file: Path,
    ) -> None:
        self.channel = channel
        self.tail: deque[str] = deque(maxlen=TAIL)
        self._warden = warden
        self._lifeline: int | None = lifeline
        self._mark = mark
        self._log_file = log_file
        self._reason: str | None = None
        self._ending: asyncio.Task[None] | None = None
        self._reader = asyncio.create_task(self._read_output(log_file), name="engine output")
        self._exit = asyncio.create_task(self._wait(), name="engine exit")

    @classmethod
    async def start(cls, python: Path, environment: dict[str, str], log_file: Path) -> WorkerProcess:
        """Start `framekeeper.engine.worker` with exactly this environment.

        Raises OSError when the interpreter cannot be started. `log_file` is begun anew; the previous
        one is kept beside it with the ending `.1`.
        """
        mark = uuid4().hex
        ours, theirs = socket.socketpair()
        read_end, lifeline = os.pipe()
        fd = theirs.fileno()
        try:
            warden = await asyncio.create_subprocess_exec(
                # -I: nothing of the user's environment; -S: no site-packages, it needs none.
                sys.executable,
                "-IS",
                str(WARDEN),
                str(read_end),
                str(python),
                "-m",
                "framekeeper.engine.worker",
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                limit=1024 * 1024,
                env=environment
                | {
                    "FRAMEKEEPER_CHANNEL_FD": str(fd),
                    "FRAMEKEEPER_PASS_FDS": str(fd),
                    leftovers.START: mark,
                    "SPT_NOENV": "1",
                },
                pass_fds=(read_end, fd),
                start_new_session=True,
            )
        except BaseException:
            os.close(lifeline)
            ours.close()
            raise
        finally:
            os.close(read_end)
            theirs.close()
        return cls(warden, await Channel.over(ours, decode_from_child), lifeline, mark, log_file)

    def lines(self) -> list[str]:
        """What the processes of this start have written since the log was last begun, at least the tail."""
        try:
            written = self._log_file.read_text(errors="replace").splitlines()
        except OSError:
            written = []
        return written if len(written) >= len(self.tail) else list(self.tail)

    @property
    def pid(self) -> int:
        """Process id of the warden, which is also the id of the process group and session."""
        return self._warden.pid

    def kill(self, reason: str, *, hung: bool = False) -> None:
        """Order the end of the whole group; `wait` tells when it is done. `reason` is what `Exit` says.

        A `hung` group writes its threads' stacks to its log first and gets SIGTERM a moment before SIGKILL.
        """
        if self._lifeline is not None and not self._exit.done():
            self._reason = self._reason or reason
        if not hung:
            self._drop_lifeline()
        elif self._ending is None:
            self._ending = asyncio.create_task(self._end_hung(), name="engine end")

    async def wait(self) -> Exit:
        """Wait for the end of the whole group."""
        return await asyncio.shield(self._exit)

    async def _end_hung(self) -> None:
        for number, seconds in ((signal.SIGUSR1, STACK_SECONDS), (signal.SIGTERM, TERM_SECONDS)):
            for pid in await asyncio.to_thread(leftovers.find, leftovers.START, self._mark):
                # The warden ignores both, and so do resource trackers ignore SIGTERM.
                if pid != self._warden.pid and not _is_tracker(pid):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, number)
            await asyncio.wait({self._exit}, timeout=seconds)
        self._drop_lifeline()

    def _drop_lifeline(self) -> None:
        if self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None

    async def _wait(self) -> Exit:
        await _ended(self._warden.pid)
        self._drop_lifeline()
        # A warden that was itself killed leaves its processes to us.
        try:
            await asyncio.to_thread(leftovers.kill, leftovers.START, self._mark, seconds=KILL_SECONDS)
        except TimeoutError as error:
            log.error("engine processes outlived SIGKILL", error=str(error))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(self._reader), 2)
        self._reader.cancel()
        self.channel.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._warden.wait(), 2)
        code = self._warden.returncode
        return Exit.of(-signal.SIGKILL if code is None else code, self._reason)

    async def _read_output(self, log_file: Path) -> None:
        _begin_anew(log_file)
        assert self._warden.stdout is not None
        while True:
            try:
                line = await self._warden.stdout.readline()
            except ValueError:  # a line over the limit: its beginning is dropped, the rest goes on
                continue
            if not line:
                return
            text = line.decode(errors="replace").rstrip("\r\n")
            self.tail.append(text)
            # A full disk must not stop the engine: its log is the least that can be lost.
            with contextlib.suppress(OSError), log_file.open("a") as file:
                file.write(text + "\n")
                if file.tell() > LOG_BYTES:
                    _begin_anew(log_file)


async def _ended(pid: int) -> None:
    """Wait for the end of a child.

    asyncio's own wait lasts until nobody holds the child's output any more: for ever, where a warden was
    killed and a process that it would have ended lives on.
    """
    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(watched, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(watched)
        os.close(watched)


def _is_tracker(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return "resource_tracker" in Path(f"/proc/{pid}/cmdline").read_text()
    return True


def _begin_anew(log: Path) -> None:
    with contextlib.suppress(OSError):
        log.parent.mkdir(parents=True, exist_ok=True)
        if log.exists():
            log.replace(log.with_name(log.name + ".1"))
        log.touch()
