"""What the clients of a soak were told: the side of the bargain that the system has to keep."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from dataclasses import dataclass, field

FINAL = ("completed", "failed", "cancelled")


@dataclass
class Wish:
    """One accepted job, and what its owner did about it. `*_sent` is true even when the answer was lost."""

    id: str
    width: int
    height: int
    num_frames: int
    cancel_sent: bool = False
    delete_sent: bool = False
    deleted: bool = False
    final: str | None = None
    final_seen: float = 0.0


@dataclass(frozen=True)
class Answer:
    """One HTTP exchange; `status` is 0 when there was no answer, and `said` the error's code or name."""

    began: float
    ended: float
    route: str
    status: int
    said: str = ""


@dataclass
class Ledger:
    """All clients' knowledge; every method may be called by any thread."""

    wishes: dict[str, Wish] = field(default_factory=dict)
    answers: list[Answer] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    downloads: int = 0
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def accept(self, wish: Wish) -> None:
        """A POST was answered with 200."""
        with self._lock:
            if wish.id in self.wishes:
                self.problems.append(f"{wish.id}: two POSTs got the same id")
            self.wishes[wish.id] = wish

    def note(self, answer: Answer) -> None:
        """Keep an exchange."""
        with self._lock:
            self.answers.append(answer)

    def complain(self, problem: str) -> None:
        """Something that must not be."""
        with self._lock:
            self.problems.append(f"{problem} (at {time.strftime('%H:%M:%S')})")

    def see(self, wish: Wish, status: str, began: float) -> None:
        """A client that asked at `began` saw this state; a final one must stay."""
        with self._lock:
            if wish.final is not None and wish.final != status and began > wish.final_seen:
                self.complain(f"{wish.id}: was {wish.final} and is now {status}")
            elif wish.final is None and status in FINAL:
                wish.final, wish.final_seen = status, time.monotonic()

    def choose(self, dice: random.Random, *, final: bool | None = None) -> Wish | None:
        """Some job that was not deleted, one of the latest; with `final`, one (not) known to be final."""
        with self._lock:
            latest = [wish for wish in list(self.wishes.values())[-60:] if not wish.delete_sent]
        fitting = [wish for wish in latest if final is None or (wish.final is not None) is final]
        return dice.choice(fitting) if fitting else None

    def open(self) -> int:
        """Jobs that are not known to be final."""
        with self._lock:
            return sum(wish.final is None and not wish.delete_sent for wish in self.wishes.values())

    def statuses(self) -> dict[str, int]:
        """How often each route answered what, sorted by route."""
        with self._lock:
            counted = Counter(f"{answer.route} {answer.status or answer.said}" for answer in self.answers)
        return dict(sorted(counted.items()))

    def seconds(self, route: str) -> list[float]:
        """Seconds of the exchanges of a route that were answered with 200."""
        with self._lock:
            return [
                each.ended - each.began for each in self.answers if (each.route, each.status) == (route, 200)
            ]
