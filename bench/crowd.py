"""Many clients at once: they submit, poll, delete, and follow events."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from wire import Answer, Wire

POLL_SECONDS = 1.0
#: A client gives its job up after so long and submits another one: the engine could never make all of them.
PATIENCE_SECONDS = 20.0
FINAL = ("completed", "failed", "cancelled", "expired")
Clock = Callable[[], float]


@dataclass
class Seen:
    """What a crowd saw: seconds by kind of request, answers by kind and status, and streams."""

    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    statuses: Counter[tuple[str, int]] = field(default_factory=Counter)
    broken: Counter[str] = field(default_factory=Counter)
    finished: int = 0
    events: int = 0
    streams_ended: int = 0
    streams_cut: int = 0
    streams_open: int = 0
    most_open: int = 0

    def server_errors(self) -> dict[str, int]:
        """Answers of 500 and above, and connections that broke."""
        found = {f"{kind} {status}": n for (kind, status), n in self.statuses.items() if status >= 500}
        return found | {f"{kind} broken": n for kind, n in self.broken.items()}


class Crowd:
    """Clients of one server until `end` (by time.monotonic)."""

    def __init__(self, url: str, fields: dict[str, Any], end: float) -> None:
        self.url = url
        self.fields = fields
        self.end = end
        self.seen = Seen()
        self.dice = random.Random(7)

    def over(self) -> bool:
        """Whether it is time to go home."""
        return time.monotonic() >= self.end

    async def timed(self, wire: Wire, kind: str, method: str, path: str, **more: Any) -> Answer | None:
        """One request, noted; None when the connection broke."""
        began = time.perf_counter()
        try:
            answer = await asyncio.wait_for(wire.ask(method, path, **more), 60)
        except (OSError, EOFError, TimeoutError) as error:
            self.seen.broken[f"{kind} {type(error).__name__}"] += 1
            return None
        self.seen.seconds[kind].append(time.perf_counter() - began)
        self.seen.statuses[kind, answer.status] += 1
        return answer

    async def submitter(self) -> None:
        """Submit a job, poll it once a second, delete it when it is done or takes too long; again."""
        wire = Wire(self.url)
        await asyncio.sleep(self.dice.random() * min(5.0, self.end - time.monotonic()))
        while not self.over():
            answer = await self.timed(wire, "POST", "POST", "/v1/videos", fields=self.fields)
            if answer is None or answer.status != 200:
                hint = answer.headers.get("retry-after", "1") if answer else "1"
                await asyncio.sleep(min(float(hint), max(0.0, self.end - time.monotonic())))
                continue
            video = answer.json()["id"]
            given_up = time.monotonic() + PATIENCE_SECONDS
            while not self.over() and time.monotonic() < given_up:
                await asyncio.sleep(POLL_SECONDS * (0.5 + self.dice.random()))
                polled = await self.timed(wire, "GET status", "GET", f"/v1/videos/{video}")
                if polled is not None and polled.status == 200 and polled.json()["status"] in FINAL:
                    self.seen.finished += 1
                    break
            await self.timed(wire, "DELETE", "DELETE", f"/v1/videos/{video}")
        wire.close()

    async def listener(self, videos: Callable[[], str | None]) -> None:
        """Follow one video's events to its end, then another's."""
        await asyncio.sleep(self.dice.random() * 3)
        while not self.over():
            video = videos()
            if video is None:
                await asyncio.sleep(0.2)
                continue
            try:
                async with asyncio.timeout(max(0.1, self.end - time.monotonic())):
                    await self._follow(video)
            except TimeoutError:
                return
            except (OSError, EOFError) as error:
                self.seen.broken[f"events {type(error).__name__}"] += 1
                await asyncio.sleep(0.2)
            # By then the job that has ended is replaced.
            await asyncio.sleep(0.5 + self.dice.random())

    async def _follow(self, video: str) -> None:
        lines = Wire(self.url).lines(f"/v1/videos/{video}/events")
        status = int(await anext(lines))
        self.seen.statuses["GET events", status] += 1
        if status != 200:
            await lines.aclose()
            await asyncio.sleep(0.2)
            return
        self.seen.streams_open += 1
        self.seen.most_open = max(self.seen.most_open, self.seen.streams_open)
        ended = False
        try:
            async for line in lines:
                self.seen.events += line.startswith("event: video")
                ended = ended or line.startswith("event: end")
        finally:
            self.seen.streams_open -= 1
            await lines.aclose()
        # Of a job that was deleted the stream just ends.
        self.seen.streams_ended += ended
        self.seen.streams_cut += not ended


class Followed:
    """Some jobs of their own that the listeners follow; each is replaced by a new one when it is done."""

    def __init__(self, crowd: Crowd, fields: dict[str, Any], count: int) -> None:
        self.crowd = crowd
        self.fields = fields
        self.ids: list[str | None] = [None] * count

    def choose(self) -> str | None:
        """One of them, if there is any."""
        there = [each for each in self.ids if each is not None]
        return self.crowd.dice.choice(there) if there else None

    async def keep(self, number: int) -> None:
        """Submit a job, wait for its end, submit the next; delete none: every stream ends by itself."""
        wire = Wire(self.crowd.url)
        while not self.crowd.over():
            answer = await self.crowd.timed(wire, "POST", "POST", "/v1/videos", fields=self.fields)
            if answer is None or answer.status != 200:
                await asyncio.sleep(1)
                continue
            video = self.ids[number] = answer.json()["id"]
            while not self.crowd.over():
                await asyncio.sleep(0.5)
                answer = await self.crowd.timed(wire, "GET status", "GET", f"/v1/videos/{video}")
                if answer is not None and answer.status == 200 and answer.json()["status"] in FINAL:
                    self.ids[number] = None
                    break
        wire.close()


async def gather(crowd: Crowd, clients: int, listeners: int, followed: Followed | None) -> Seen:
    """Let all of them run until the end."""
    work = [crowd.submitter() for _ in range(clients)]
    if followed is not None:
        work += [followed.keep(number) for number in range(len(followed.ids))]
        work += [crowd.listener(followed.choose) for _ in range(listeners)]
    await asyncio.gather(*work)
    return crowd.seen


def run(
    url: str, fields: dict[str, Any], *, seconds: float, clients: int, listeners: int, jobs: int = 0
) -> Seen:
    """A crowd of `clients`, and `listeners` to the events of `jobs` jobs, for so many seconds."""
    crowd = Crowd(url, fields, time.monotonic() + seconds)
    # Long enough to be followed step by step.
    followed = Followed(crowd, fields | {"num_inference_steps": 50}, jobs) if listeners else None
    return asyncio.run(gather(crowd, clients, listeners, followed))


def has_events(url: str, fields: dict[str, Any]) -> bool:
    """Whether the server sends events."""

    async def ask() -> bool:
        wire = Wire(url)
        video = json.loads((await wire.ask("POST", "/v1/videos", fields)).body)["id"]
        lines = Wire(url).lines(f"/v1/videos/{video}/events")
        status = await anext(lines)
        await lines.aclose()
        await wire.ask("DELETE", f"/v1/videos/{video}")
        wire.close()
        return status == "200"

    return asyncio.run(ask())
