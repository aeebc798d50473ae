"""The messages of one worker process, sorted into a mailbox for its start and one for each job."""

from __future__ import annotations

import asyncio

import msgspec

from framekeeper.engine import protocol
from framekeeper.engine.exit import Exit
from framekeeper.engine.process import WorkerProcess

Mailbox = asyncio.Queue[protocol.FromChild | Exit]
#: Key of the mailbox for loading and warm-up.
START = ("", 0)


class Link:
    """A running worker and its mailboxes. The last thing in every mailbox is the `Exit`.

    `gone` is set as soon as the worker is out of reach, `exit` when its whole group has ended.
    """

    def __init__(self, process: WorkerProcess) -> None:
        self.process = process
        self.exit: Exit | None = None
        self.gone = False
        self.last_memory: int | None = None
        self.last_resident: int | None = None
        self._boxes: dict[tuple[str, int], Mailbox] = {START: asyncio.Queue()}

    def mailbox(self, job: str, attempt: int) -> Mailbox:
        """The mailbox of an attempt, opened on first use."""
        box = self._boxes.setdefault((job, attempt), asyncio.Queue())
        if self.exit is not None:
            box.put_nowait(self.exit)
        return box

    @property
    def start(self) -> Mailbox:
        """The mailbox of loading and warm-up."""
        return self._boxes[START]

    def close(self, job: str, attempt: int) -> None:
        """Forget an attempt; late messages about it are dropped."""
        self._boxes.pop((job, attempt), None)

    def send(self, message: protocol.FromParent) -> None:
        """Send to the worker; a dead one is found by its `Exit`."""
        self.process.channel.send(message)

    def condemn(self, reason: str, *, hung: bool = False) -> None:
        """End the worker; from now on it gets no job, also while it still lives."""
        self.gone = True
        self.process.kill(reason, hung=hung)

    async def pump(self) -> Exit:
        """Sort messages until the process has ended."""
        try:
            while (message := await self.process.channel.receive()) is not None:
                job = getattr(message, "job", None) or ""
                attempt = getattr(message, "attempt", 0) if job else 0
                if isinstance(message, protocol.Step):
                    self.last_memory = message.memory_bytes
                elif isinstance(message, protocol.Done):
                    self.last_resident = message.facts.get("memory", {}).get("resident_bytes")
                box = self._boxes.get((job, attempt))
                if box is not None:
                    box.put_nowait(message)
        except msgspec.DecodeError as error:
            self.condemn(f"the worker sent a message that is not of this version ({error})")
        # The channel is closed: whatever still lives of the group is of no use.
        self.gone = True
        # A process that ends by itself shall show its own exit status.
        await asyncio.wait({asyncio.create_task(self.process.wait())}, timeout=3)
        self.process.kill("the worker closed its channel without ending")
        self.exit = await self.process.wait()
        for box in self._boxes.values():
            box.put_nowait(self.exit)
        return self.exit
