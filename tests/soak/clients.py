"""Clients that behave at random, as real ones do: they ask, look, cancel, delete, fetch, and get it wrong."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import httpx

from soak.ledger import Answer, Ledger, Wish
from soak.script import FRAMES, SIDE, STEPS

#: Weights of a client's acts.
ACTS = {"submit": 30, "look": 40, "cancel": 5, "delete": 9, "fetch": 12, "page": 4, "err": 8, "observe": 2}
#: Seconds between two acts of one client.
PAUSE = (0.2, 1.2)
#: With so many open jobs clients wait instead of asking for more.
MOST_OPEN = 40
TIMEOUT_SECONDS = 30.0

MISTAKES: tuple[tuple[str, str, Any, set[int]], ...] = (
    ("POST", "/v1/videos", {"prompt": "a cat", "size": "63x64"}, {400}),
    ("POST", "/v1/videos", {"prompt": "a cat", "size": "4096x4096"}, {400}),
    ("POST", "/v1/videos", {"prompt": "a cat", "num_frames": 10}, {400}),
    ("POST", "/v1/videos", {"prompt": ""}, {400}),
    ("POST", "/v1/videos", {"prompt": "a cat", "colour": "red"}, {400}),
    ("POST", "/v1/videos", {"prompt": "a cat", "model": "another"}, {404}),
    ("GET", "/v1/videos/video_00000000000000000000000000000000", None, {404}),
    ("GET", "/v1/videos/../../etc/passwd", None, {404}),
    ("GET", "/v1/videos?limit=0", None, {400}),
    ("POST", "/v1/videos/nothing/cancel", None, {404}),
    ("DELETE", "/v1/videos/video_00000000000000000000000000000000", None, {404}),
)


class Client(threading.Thread):
    """One client; ends when `stopping` is set."""

    def __init__(self, number: int, seed: int, urls: list[str], ledger: Ledger, stopping: threading.Event):
        super().__init__(name=f"client {number}", daemon=True)
        self._dice = random.Random(f"{seed}/client/{number}")
        self._links = [httpx.Client(base_url=url, timeout=TIMEOUT_SECONDS) for url in urls]
        self._ledger = ledger
        self._stopping = stopping

    def run(self) -> None:
        """Act until told to stop."""
        acts, weights = list(ACTS), list(ACTS.values())
        while not self._stopping.wait(self._dice.uniform(*PAUSE)):
            act = self._dice.choices(acts, weights)[0]
            try:
                getattr(self, f"act_{act}")()
            except Exception as error:
                self._ledger.complain(f"{self.name}, {act}: {type(error).__name__}: {error}")
        for link in self._links:
            link.close()

    def _ask(self, route: str, method: str, path: str, **more: Any) -> httpx.Response | None:
        """One request; None when there was no answer."""
        link = self._dice.choice(self._links)
        began = time.monotonic()
        try:
            answer = link.request(method, path, **more)
        except httpx.TransportError as error:
            self._ledger.note(Answer(began, time.monotonic(), route, 0, type(error).__name__))
            return None
        said = ""
        if answer.status_code >= 400 and answer.headers.get("content-type", "").startswith(
            "application/json"
        ):
            said = answer.json()["error"]["code"]
        self._ledger.note(Answer(began, time.monotonic(), route, answer.status_code, said))
        return answer

    # -- acts -----------------------------------------------------------------------------------------------

    def act_submit(self) -> None:
        if self._ledger.open() >= MOST_OPEN:
            return
        dice = self._dice
        width, height = (16 * dice.randint(1, SIDE // 16) for _ in range(2))
        frames = 4 * dice.randint(1, (FRAMES - 1) // 4) + 1
        fields: dict[str, Any] = {
            "prompt": f"a cat, {dice.random()}",
            "size": f"{width}x{height}",
            "num_frames": frames,
            "num_inference_steps": dice.randint(2, STEPS),
            "fps": dice.choice([8, 16]),
        }
        if dice.random() < 0.3:
            form = {name: (None, str(value)) for name, value in fields.items()}
            answer = self._ask("POST", "POST", "/v1/videos", files=form)
        else:
            answer = self._ask("POST", "POST", "/v1/videos", json=fields)
        if answer is None or answer.status_code != 200:
            return
        self._ledger.accept(Wish(answer.json()["id"], width, height, frames))

    def act_look(self) -> None:
        final = None if self._dice.random() < 0.2 else False
        if (wish := self._ledger.choose(self._dice, final=final)) is None:
            return
        began = time.monotonic()
        answer = self._ask("GET one", "GET", f"/v1/videos/{wish.id}")
        self._expect(wish, answer, {200})
        if answer is not None and answer.status_code == 200:
            self._ledger.see(wish, answer.json()["status"], began)

    def act_cancel(self) -> None:
        if (wish := self._ledger.choose(self._dice, final=False)) is None:
            return
        wish.cancel_sent = True
        answer = self._ask("cancel", "POST", f"/v1/videos/{wish.id}/cancel")
        self._expect(wish, answer, {200, 409})

    def act_delete(self) -> None:
        if (wish := self._ledger.choose(self._dice)) is None:
            return
        wish.delete_sent = True
        answer = self._ask("DELETE", "DELETE", f"/v1/videos/{wish.id}")
        wish.deleted = answer is not None and answer.status_code in (200, 404)

    def act_fetch(self) -> None:
        if (wish := self._ledger.choose(self._dice, final=True)) is None:
            return
        variant = self._dice.choice(["video", "video", "thumbnail", "spritesheet"])
        answer = self._ask("content", "GET", f"/v1/videos/{wish.id}/content?variant={variant}")
        self._expect(wish, answer, {200} if wish.final == "completed" else {409})
        if answer is not None and answer.status_code == 200:
            self._ledger.downloads += 1
            if int(answer.headers["content-length"]) != len(answer.content) or not answer.content:
                self._ledger.complain(f"{wish.id}: {variant} was not sent whole")

    def act_page(self) -> None:
        self._ask("list", "GET", "/v1/videos", params={"limit": self._dice.randint(1, 100)})

    def act_observe(self) -> None:
        self._ask("observe", "GET", self._dice.choice(["/v1/engines", "/v1/incidents", "/v1/models"]))

    def act_err(self) -> None:
        method, path, body, expected = self._dice.choice(MISTAKES)
        answer = self._ask("mistake", method, path, json=body)
        if answer is not None and answer.status_code < 500 and answer.status_code not in expected:
            self._ledger.complain(f"{method} {path} {body}: {answer.status_code} {answer.text[:200]}")

    def _expect(self, wish: Wish, answer: httpx.Response | None, expected: set[int]) -> None:
        """Complain of anything else, unless the server is ill (counted elsewhere) or the job was deleted."""
        if answer is None or answer.status_code >= 500 or answer.status_code in expected or wish.delete_sent:
            return
        self._ledger.complain(f"{wish.id}: {answer.request.method} {answer.status_code} {answer.text[:200]}")
