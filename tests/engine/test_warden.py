"""Nothing of an engine's group outlives its supervisor or its worker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from framekeeper.engine import leftovers
from framekeeper.engine.process import WARDEN

FAMILY = """
import multiprocessing.shared_memory, os, subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
memory = multiprocessing.shared_memory.SharedMemory(create=True, size=1000)
print(memory.name, flush=True)
"""


class Guarded:
    """A command under a warden; `lifeline` is the end that the supervisor would hold."""

    def __init__(self, code: str) -> None:
        self.mark = uuid4().hex
        read_end, self.lifeline = os.pipe()
        self.warden = subprocess.Popen(
            [sys.executable, "-IS", str(WARDEN), str(read_end), sys.executable, "-c", code],
            env={**os.environ, leftovers.START: self.mark},
            pass_fds=[read_end],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        os.close(read_end)

    def living(self) -> list[int]:
        return leftovers.find(leftovers.START, self.mark)

    def line(self) -> str:
        assert self.warden.stdout is not None
        return self.warden.stdout.readline().strip()


@pytest.fixture
def guarded() -> Iterator[list[Guarded]]:
    started: list[Guarded] = []
    yield started
    for each in started:
        leftovers.kill(leftovers.START, each.mark)


def gone(guarded: Guarded, seconds: float = 5) -> bool:
    deadline = time.monotonic() + seconds
    while guarded.living():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def test_closing_the_lifeline_ends_the_whole_family_and_its_shared_memory(guarded: list[Guarded]) -> None:
    family = Guarded(FAMILY + "time.sleep(600)")
    guarded.append(family)
    name = family.line()
    assert len(family.living()) >= 4
    assert Path("/dev/shm", name).exists()
    os.close(family.lifeline)
    assert family.warden.wait(10) == -signal.SIGKILL
    assert gone(family)
    assert not Path("/dev/shm", name).exists()


def test_the_end_of_the_command_ends_the_children_it_left(guarded: list[Guarded]) -> None:
    family = Guarded(FAMILY + "os._exit(7)")
    guarded.append(family)
    assert family.warden.wait(10) == 7
    assert gone(family)
    os.close(family.lifeline)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGTERM])
def test_the_warden_ends_by_the_signal_that_ended_the_command(
    guarded: list[Guarded], number: signal.Signals
) -> None:
    family = Guarded(f"import os; os.kill(os.getpid(), {int(number)})")
    guarded.append(family)
    assert family.warden.wait(10) == -number
    os.close(family.lifeline)


def test_killing_the_warden_ends_its_command(guarded: list[Guarded]) -> None:
    family = Guarded("import time; print('up', flush=True); time.sleep(600)")
    guarded.append(family)
    family.line()
    family.warden.kill()
    family.warden.wait()
    assert gone(family)
    os.close(family.lifeline)


def test_signals_to_the_warden_do_not_reach_through_and_the_command_can_be_terminated(
    guarded: list[Guarded],
) -> None:
    family = Guarded("import time; print('up', flush=True); time.sleep(600)")
    guarded.append(family)
    family.line()
    family.warden.send_signal(signal.SIGTERM)
    time.sleep(0.2)
    assert family.warden.poll() is None
    (command,) = [pid for pid in family.living() if pid != family.warden.pid]
    os.kill(command, signal.SIGTERM)
    assert family.warden.wait(10) == -signal.SIGTERM
    os.close(family.lifeline)
