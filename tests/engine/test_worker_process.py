"""The end of a worker's processes is noticed, whoever is left of them."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from pathlib import Path
from uuid import uuid4

import pytest

from framekeeper.engine import leftovers, process
from framekeeper.engine.channel import Channel
from framekeeper.engine.process import WorkerProcess
from framekeeper.engine.protocol import decode_from_child

MARK = uuid4().hex
#: As a killed warden's worker, which left a process of its own that holds the output.
LEAVES_A_CHILD = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
print("started", flush=True)
time.sleep(60)
"""


async def test_killed_warden_is_noticed_although_a_process_it_left_holds_the_output(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    lifeline = os.pipe()[1]
    warden = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        LEAVES_A_CHILD,
        stdout=asyncio.subprocess.PIPE,
        env=os.environ | {leftovers.START: MARK},
    )
    worker = WorkerProcess(
        warden, await Channel.over(ours, decode_from_child), lifeline, MARK, tmp_path / "log"
    )
    async with asyncio.timeout(10):
        while "started" not in worker.lines():  # noqa: ASYNC110  the log is a file
            await asyncio.sleep(0.02)
        assert len(leftovers.find(leftovers.START, MARK)) == 2
        os.kill(warden.pid, signal.SIGKILL)
        end = await worker.wait()
    assert end.signal == signal.SIGKILL
    assert leftovers.find(leftovers.START, MARK) == []
    theirs.close()


def sizes(directory: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in directory.iterdir()}


async def test_log_of_an_engine_that_talks_for_long_stays_small_and_keeps_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "LOG_BYTES", 4096)
    ours, theirs = socket.socketpair()
    warden = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "for i in range(2000): print('line', i)", stdout=asyncio.subprocess.PIPE
    )
    log = tmp_path / "engine-0.log"
    worker = WorkerProcess(
        warden, await Channel.over(ours, decode_from_child), os.pipe()[1], uuid4().hex, log
    )
    async with asyncio.timeout(20):
        await worker.wait()
    assert all(size <= 4096 + 20 for size in sizes(tmp_path).values())
    assert sorted(sizes(tmp_path)) == ["engine-0.log", "engine-0.log.1"]
    assert worker.lines()[-process.TAIL :] == [f"line {i}" for i in range(2000 - process.TAIL, 2000)]
    theirs.close()
