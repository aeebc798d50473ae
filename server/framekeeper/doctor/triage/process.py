"""A command under the warden with a deadline: nothing of it is left when `run` returns."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from framekeeper.engine import leftovers
from framekeeper.engine.exit import Exit
from framekeeper.engine.process import KILL_SECONDS, WARDEN

#: What the warden may take for that; then its processes are looked for and killed from here.
WARDEN_SECONDS = 10.0


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a command ended; `late` says that it was killed at its deadline."""

    exit: Exit
    late: bool
    seconds: float


async def run(
    command: Sequence[str | Path], environment: Mapping[str, str], log_file: Path, seconds: float
) -> Ended:
    """Run a command with exactly this environment; its output goes to `log_file`. Raises OSError."""
    began = time.monotonic()
    mark = uuid4().hex
    read_end, lifeline = os.pipe()
    held = contextlib.ExitStack()
    held.callback(os.close, lifeline)
    with held:
        try:
            with log_file.open("wb") as output:
                process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-IS",
                    str(WARDEN),
                    str(read_end),
                    *map(str, command),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=output,
                    stderr=asyncio.subprocess.STDOUT,
                    env={**environment, leftovers.START: mark, "SPT_NOENV": "1"},
                    pass_fds=(read_end,),
                    start_new_session=True,
                )
        finally:
            os.close(read_end)
        late = False
        try:
            await asyncio.wait_for(process.wait(), seconds)
        except TimeoutError:
            late = True
        finally:
            held.close()  # the warden kills all that is left
            await asyncio.wait({asyncio.create_task(process.wait())}, timeout=WARDEN_SECONDS)
            await asyncio.to_thread(_end, mark)
        code = await process.wait()
    reason = f"it was not done within {seconds:g} s" if late else None
    return Ended(exit=Exit.of(code, reason), late=late, seconds=time.monotonic() - began)


def _end(mark: str) -> None:
    with contextlib.suppress(TimeoutError):
        leftovers.kill(leftovers.START, mark, seconds=KILL_SECONDS)
