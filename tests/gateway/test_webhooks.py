"""Webhooks: signed, retried, and never sent into a private network."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import openai
import pytest

from framekeeper.database.pool import Database
from framekeeper.errors import EngineFailed, InvalidRequest
from framekeeper.gateway import webhooks
from framekeeper.gateway.webhooks import NotDelivered, check_url
from framekeeper.jobs import cancel, deliveries, settle
from framekeeper.jobs.submit import Terms, submit
from framekeeper.settings import Settings, SettingsError, load
from gateway.serving import served
from jobs.records import request

SECRET = "whsec_" + base64.b64encode(b"k" * 32).decode()


class Receiver(ThreadingHTTPServer):
    """Keeps what it got, and answers with the statuses it was given, then with 204."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.statuses: list[int] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/hook?x=1"


class Answer(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.got.append(({k.lower(): v for k, v in self.headers.items()}, body))
        self.send_response(self.server.statuses.pop(0) if self.server.statuses else 204)
        self.send_header("Location", "http://127.0.0.1:1/elsewhere")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        return


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def hooked(settings: Settings) -> Settings:
    return settings.model_copy(update={"webhook_secret": SECRET, "webhook_private": True})


async def until(true: Any, seconds: float = 10) -> None:
    async with asyncio.timeout(seconds):
        while not true():  # noqa: ASYNC110  (a server in a thread)
            await asyncio.sleep(0.05)


async def tried(database: Database, count: int) -> None:
    """Wait until so many deliveries have failed once."""
    async with asyncio.timeout(20):
        query = "SELECT 1 FROM webhook_deliveries WHERE last_error <> ''"
        while len(await database.fetch_all(query)) < count:  # noqa: ASYNC110  (PostgreSQL tells nobody)
            await asyncio.sleep(0.05)


async def finished(database: Database, url: str) -> str:
    video = await submit(database, "tiny", request(), Terms(webhook_url=url))
    held = await settle.claim(database, video.id, engine_id="host/0", run_id="run")
    assert held is not None
    await settle.fail(database, held, EngineFailed("It broke."))
    return video.id


async def test_owner_is_told_and_openais_client_believes_the_signature(
    hooked: Settings, database: Database, receiver: Receiver, ready_engine: None
) -> None:
    with served(hooked) as base:
        body = {"prompt": "a cat", "webhook_url": receiver.url}
        async with httpx.AsyncClient(base_url=base) as client:
            video_id = (await client.post("/v1/videos", json=body)).json()["id"]
            await client.post(f"/v1/videos/{video_id}/cancel")
        await until(lambda: receiver.got)
    headers, sent = receiver.got[0]
    event = json.loads(sent)
    assert (event["type"], event["data"]) == ("video.cancelled", {"id": video_id, "status": "cancelled"})
    assert headers["host"] == receiver.url.split("/")[2]
    client = openai.OpenAI(api_key="x", webhook_secret=SECRET)
    client.webhooks.verify_signature(sent.decode(), headers)
    with pytest.raises(openai.InvalidWebhookSignatureError):
        client.webhooks.verify_signature(sent.decode().replace("cancelled", "completed"), headers)


async def test_failed_job_is_told_with_its_reason_once(
    hooked: Settings, database: Database, receiver: Receiver
) -> None:
    video_id = await finished(database, receiver.url)
    with served(hooked), served(hooked):
        await until(lambda: receiver.got)
        await asyncio.sleep(2.5)
    ((_, sent),) = receiver.got
    event = json.loads(sent)
    assert event["data"] == {
        "id": video_id, "status": "failed", "error": {"code": "engine_failed", "message": "It broke."}
    }  # fmt: skip


async def test_deleted_job_tells_nobody(database: Database) -> None:
    video = await submit(database, "tiny", request(), Terms(webhook_url="https://example.com/"))
    await cancel.delete(database, video.id)
    assert await deliveries.take(database) == []


@pytest.mark.parametrize("address", ["https://a..b/", "https://example.com/\x7f"])
async def test_address_that_nobody_can_look_up_is_a_failed_try_and_not_borrowed_for_ever(
    hooked: Settings, database: Database, address: str
) -> None:
    await finished(database, address)
    (due,) = await deliveries.take(database)
    async with httpx.AsyncClient() as client:
        await webhooks._deliver(client, database, hooked, due)
    row = await database.fetch_one("SELECT last_error FROM webhook_deliveries")
    assert row is not None
    assert row["last_error"]


@pytest.mark.parametrize("status", [500, 302, 404])
async def test_refused_delivery_is_put_off_and_a_redirect_is_not_followed(
    hooked: Settings, database: Database, receiver: Receiver, status: int
) -> None:
    receiver.statuses = [status]
    await finished(database, receiver.url)
    with served(hooked):
        await tried(database, 1)
        row = await database.fetch_one(
            """
            SELECT last_error, delivered_at, extract(epoch FROM next_at - clock_timestamp())::float8 AS pause
            FROM webhook_deliveries
            """
        )
        assert row is not None
        assert (row["last_error"], row["delivered_at"]) == (f"the receiver answered {status}", None)
        assert 3 < row["pause"] <= 5
        await until(lambda: len(receiver.got) == 2)
    first, second = (headers["webhook-id"] for headers, _ in receiver.got)
    assert first == second


async def test_pauses_grow_until_it_is_given_up(database: Database) -> None:
    await finished(database, "https://example.com/")
    pauses = []
    for _ in range(len(deliveries.PAUSES) + 1):
        async with database.transaction() as connection:
            await connection.execute("UPDATE webhook_deliveries SET next_at = clock_timestamp()")
        (due,) = await deliveries.take(database)
        assert await deliveries.take(database) == [], "borrowed"
        pauses.append(await deliveries.failed(database, due, "no"))
    assert pauses == [*deliveries.PAUSES, None]
    async with database.transaction() as connection:
        await connection.execute("UPDATE webhook_deliveries SET next_at = clock_timestamp()")
    assert await deliveries.take(database) == []


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com/", "ftp://example.com/", "https://", "https://user:word@example.com/", "nonsense",
        "https://127.0.0.1/", "https://localhost/", "https://[::1]/", "https://10.0.0.1/", "https://169.254.169.254/",
        "https://[::ffff:127.0.0.1]/", "https://0.0.0.0/", "https://100.64.0.1/", "https://[fe80::1]/",
        "https://example.com:99999/", "https://exa mple.com/", "https://a..b/",
        f"https://{'a' * 64}.example/", "https://\u2603\u2603.example/", "https://example.com/\x7f",
    ],
)  # fmt: skip
def test_address_that_is_wrong_or_private_is_refused_at_once(url: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_url(url, Settings(webhook_secret=SECRET))
    assert refused.value.param == "webhook_url"


def test_good_address_is_taken_and_without_a_secret_none_is() -> None:
    check_url("https://example.com/hook", Settings(webhook_secret=SECRET))
    with pytest.raises(InvalidRequest, match="FRAMEKEEPER_WEBHOOK_SECRET"):
        check_url("https://example.com/hook", Settings())


async def test_name_that_leads_into_a_private_network_is_not_connected_to(
    settings: Settings, database: Database, receiver: Receiver
) -> None:
    port = receiver.server_address[1]
    await finished(database, f"https://localhost.localdomain:{port}/")
    await finished(database, f"https://localhost:{port}/")
    with served(settings.model_copy(update={"webhook_secret": SECRET})):
        await tried(database, 2)
    rows = await database.fetch_all("SELECT last_error FROM webhook_deliveries ORDER BY url")
    assert all("private network" in row["last_error"] or "looked up" in row["last_error"] for row in rows)
    assert "private network" in rows[1]["last_error"]
    assert receiver.got == []


async def test_host_that_cannot_be_a_name_is_noted_as_a_failed_try(
    settings: Settings, database: Database
) -> None:
    await finished(database, f"https://{'a' * 70}.example/")
    await finished(database, "https://xn--a.example..:443/")
    with served(settings.model_copy(update={"webhook_secret": SECRET})):
        await tried(database, 2)


async def test_connection_goes_to_the_address_that_was_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter(["93.184.215.14", "127.0.0.1"])

    async def rebinding(*_: Any, **__: Any) -> list[Any]:
        return [(2, 1, 6, "", (next(answers), 443))]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", rebinding)
    target = await webhooks._look_up("https://rebind.example/hook", private=False)
    assert (target.url.host, target.host) == ("93.184.215.14", "rebind.example")
    with pytest.raises(NotDelivered):
        await webhooks._look_up("https://rebind.example/hook", private=False)


@pytest.mark.parametrize("secret", ["word", "whsec_", "whsec_c2hvcnQ=", "whsec_!!!!"])
def test_weak_or_malformed_secret_is_a_wrong_setting(monkeypatch: pytest.MonkeyPatch, secret: str) -> None:
    monkeypatch.setenv("FRAMEKEEPER_WEBHOOK_SECRET", secret)
    with pytest.raises(SettingsError, match="FRAMEKEEPER_WEBHOOK_SECRET") as refused:
        load()
    assert repr(secret) not in str(refused.value), "a secret is not for logs"
