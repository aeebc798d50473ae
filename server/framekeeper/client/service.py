"""A service at an address: its requests, repeated through restarts, and its errors as one sentence."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx

from framekeeper import __version__

#: Answers of a proxy or a gateway that is being restarted, and of one that is asked too much.
PASSING = frozenset({429, 502, 503, 504})
LONGEST_WAIT = 5.0
#: What takes connections and never says a word is no service.
FIRST_TRIES = 3

Fields = Mapping[str, str]
Result = TypeVar("Result")


class ClientError(Exception):
    """What the person is told. `status` is the exit status: 2 for a mistake in the command, 1 for a failure.

    `http` and `code` are those of the service's answer, where there was one.
    """

    def __init__(
        self, message: str, status: int = 1, *, http: int | None = None, code: str | None = None
    ) -> None:
        self.status = status
        self.http = http
        self.code = code
        super().__init__(message)


class Unreachable(ClientError):
    """Nothing answers."""


class Service:
    """Requests to one address; once it ever answered, it is tried again for `patience` seconds."""

    def __init__(self, url: str, key: str | None, patience: float) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ClientError(f"--url {url!r} is no address: set one such as http://127.0.0.1:8000.", 2)
        self.url = url.rstrip("/").removesuffix("/v1")
        self.patience = patience
        self.answered = False
        headers = {"User-Agent": f"framekeeper/{__version__}"} | (
            {"Authorization": f"Bearer {key}"} if key else {}
        )
        self.http = httpx.Client(
            base_url=self.url, headers=headers, timeout=httpx.Timeout(30, connect=10), follow_redirects=True
        )

    def close(self) -> None:
        """Close the connections."""
        self.http.close()

    def create(self, fields: Fields, image: tuple[str, bytes] | None, key: str) -> dict[str, Any]:
        """Submit a job; `key` makes one job of a request that is repeated."""
        # Always multipart: of the two forms it is the one that vllm-omni's own server takes.
        parts: list[tuple[str, Any]] = [(name, (None, value)) for name, value in fields.items()]
        if image is not None:
            parts.append(("input_reference", image))
        headers = {"Idempotency-Key": key}
        return self._json(lambda: self.http.post("/v1/videos", files=parts, headers=headers))

    def retrieve(self, video_id: str) -> dict[str, Any]:
        """The job as it is."""
        return self._json(lambda: self.http.get(f"/v1/videos/{video_id}"))

    def page(self, limit: int, after: str | None) -> dict[str, Any]:
        """Jobs, the newest first."""
        query = {"limit": str(limit)} | ({"after": after} if after else {})
        return self._json(lambda: self.http.get("/v1/videos", params=query))

    def cancel(self, video_id: str) -> dict[str, Any]:
        """Cancel a job; where the service only knows deleting (OpenAI's shape), delete it."""
        try:
            return self._json(lambda: self.http.post(f"/v1/videos/{video_id}/cancel"))
        except ClientError as error:
            if error.http not in (404, 405) or error.code == "video_not_found":
                raise
        return self.delete(video_id)

    def delete(self, video_id: str) -> dict[str, Any]:
        """Delete a job and its files."""
        return self._json(lambda: self.http.delete(f"/v1/videos/{video_id}"))

    def engines(self) -> list[dict[str, Any]]:
        """The engines, or none where the service does not tell."""
        try:
            answer = self.http.get("/v1/engines", timeout=5)
            return list(answer.json()["data"]) if answer.is_success else []
        except (httpx.HTTPError, ValueError, KeyError, TypeError):
            return []

    @contextmanager
    def stream(self, path: str, **headers: str) -> Iterator[httpx.Response]:
        """A success whose body is read piece by piece. Raises ClientError, and httpx's own for a lost one."""
        with self.http.stream("GET", path, headers=headers) as answer:
            if not answer.is_success:
                answer.read()
                raise refusal(answer)
            self.answered = True
            yield answer

    def _json(self, send: Callable[[], httpx.Response]) -> dict[str, Any]:
        body: Any = self.patient(lambda: _decoded(send()))
        return dict(body)

    def patient(self, work: Callable[[], Result]) -> Result:
        """Do it again while the service is away, for at most `patience` seconds. Raises ClientError."""
        patience = Patience(self)
        while True:
            try:
                result = work()
            except (httpx.TransportError, Passing) as error:
                patience.wait(error)
            else:
                self.answered = True
                return result


class Passing(ClientError):
    """A refusal that may end by itself."""

    def __init__(self, message: str, after: float | None, http: int) -> None:
        self.after = after
        super().__init__(message, http=http)


class Patience:
    """How long one thing is tried: waits grow, and end with the sentence that the person is told."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.since = time.monotonic()
        self.tries = 0

    def reset(self) -> None:
        """It went well for a while: begin anew."""
        self.since = time.monotonic()
        self.tries = 0

    def wait(self, error: Exception) -> None:
        """Sleep before the next try. Raises ClientError when there shall be none."""
        self.tries += 1
        pause = min(LONGEST_WAIT, 0.25 * 2**self.tries) * random.uniform(0.7, 1.3)  # noqa: S311  no secret
        if isinstance(error, Passing):
            self.service.answered = True
            pause = error.after if error.after is not None else pause
            told: ClientError = error
        else:
            told = Unreachable(_unreachable(self.service.url, error))
            never = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout) or self.tries > FIRST_TRIES
            if never and not self.service.answered:
                raise told from None
        if time.monotonic() + pause - self.since > self.service.patience:
            raise told from None
        time.sleep(pause)


def refusal(answer: httpx.Response) -> ClientError:
    """The error of an answer that is no success, with the service's own sentence where it has one."""
    try:
        body = answer.json()
        error = body.get("error", body) if isinstance(body, dict) else {}
        message, code = error.get("message") or error.get("detail") or "", error.get("code")
    except (ValueError, AttributeError):
        message, code = "", None
    if not message:
        message = f"{answer.request.url.host} answered {answer.status_code} {answer.reason_phrase}."
    if answer.status_code in (404, 405) and code in (None, "not_found", "method_not_allowed"):
        return ClientError(f"{message} Check --url.", 2, http=answer.status_code, code=code)
    if answer.status_code in (401, 403):
        return ClientError(f"{message} Set FRAMEKEEPER_API_KEY or --key-file.", 2, http=answer.status_code)
    if answer.status_code in PASSING:
        after = answer.headers.get("retry-after", "")
        return Passing(str(message), float(after) if after.isdecimal() else None, answer.status_code)
    status = 2 if answer.status_code == httpx.codes.BAD_REQUEST else 1
    return ClientError(str(message), status, http=answer.status_code, code=code)


def _decoded(answer: httpx.Response) -> Any:
    if not answer.is_success:
        raise refusal(answer)
    try:
        body = answer.json()
    except ValueError:
        body = None
    if not isinstance(body, dict):
        raise ClientError(f"What answers at {answer.request.url.host} is no video service: check --url.", 2)
    return body


def _unreachable(url: str, error: Exception) -> str:
    reason = str(error).strip().rstrip(".") or type(error).__name__
    return f"Nothing answers at {url} ({reason}): check --url, and that the service runs."
