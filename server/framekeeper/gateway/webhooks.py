"""Telling owners that their video is final: signed requests to addresses that a client chose.

The gateway makes them, as engines have no way out. A client's address is looked up first, must not be one of
our own network unless that is allowed, and exactly the address that was checked is connected to; redirects
are not followed, and nothing of the answer is read but its status.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import ipaddress
import json
import socket
import time
from dataclasses import dataclass
from urllib.parse import urlsplit

import httpx
import structlog

from framekeeper import __version__
from framekeeper.database.pool import Database
from framekeeper.errors import DatabaseUnavailable, InvalidRequest
from framekeeper.gateway import metrics
from framekeeper.jobs import deliveries
from framekeeper.jobs.deliveries import Delivery
from framekeeper.jobs.fields import shown
from framekeeper.settings import Settings

log = structlog.get_logger(__name__)

#: Between two looks for what is due.
LOOK_SECONDS = 1.0
#: A receiver that answers later is tried again.
ANSWER_SECONDS = 10.0
#: What marks a secret of Standard Webhooks; the rest is base64.
MARK = "whsec_"


class NotDelivered(Exception):
    """Why a try failed, in words."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where a URL leads, once it was looked up."""

    url: httpx.URL
    host: str


def check_url(url: str, settings: Settings) -> None:
    """Refuse what can be known to be wrong at submission. Raises InvalidRequest."""
    advice = "set an https address that can be reached from the internet"
    if not settings.webhook_secret:
        raise InvalidRequest(
            f"webhook_url={shown(url)}: webhooks are off here, as FRAMEKEEPER_WEBHOOK_SECRET is not set; "
            "leave it out and poll, or follow its events.",
            param="webhook_url",
        )
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
        # What is connected to in the end; each of the three refuses what the others take.
        httpx.URL(url).host.encode("idna")
    except (ValueError, httpx.InvalidURL):
        raise InvalidRequest(
            f"webhook_url={shown(url)} is not a URL: {advice}.", param="webhook_url"
        ) from None
    schemes = ("https", "http") if settings.webhook_private else ("https",)
    fault = None
    if parts.scheme not in schemes:
        fault = f"does not begin with {' or '.join(each + '://' for each in schemes)}"
    elif not host or any(character.isspace() for character in url):
        fault = "has no host"
    elif "@" in parts.netloc:
        fault = "has a user or password in it, which would be sent on"
    elif not settings.webhook_private and (host == "localhost" or _is_private(host)):
        fault = "is an address of a private network"
    if fault:
        raise InvalidRequest(f"webhook_url={shown(url)} {fault}: {advice}.", param="webhook_url")


def signature(secret: str, identifier: str, moment: int, body: bytes) -> str:
    """The header webhook-signature, as Standard Webhooks has it. Raises ValueError for a malformed secret."""
    key = base64.b64decode(secret.removeprefix(MARK), validate=True)
    signed = f"{identifier}.{moment}.".encode() + body
    return "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()


async def keep_delivering(database: Database, settings: Settings) -> None:
    """Deliver what is due, for ever."""
    if not settings.webhook_secret:
        return
    async with httpx.AsyncClient(timeout=ANSWER_SECONDS, trust_env=False, follow_redirects=False) as client:
        while True:
            try:
                due = await deliveries.take(database)
                await asyncio.gather(*(_deliver(client, database, settings, each) for each in due))
            except DatabaseUnavailable:
                due = []
            except Exception:
                log.exception("delivering webhooks failed")
                due = []
            if not due:
                await asyncio.sleep(LOOK_SECONDS)


async def _deliver(
    client: httpx.AsyncClient, database: Database, settings: Settings, delivery: Delivery
) -> None:
    try:
        await asyncio.wait_for(_send(client, settings, delivery), 2 * ANSWER_SECONDS)
    # A host that cannot be encoded is a ValueError: it must not be tried for ever.
    except (NotDelivered, httpx.HTTPError, httpx.InvalidURL, TimeoutError, ValueError) as error:
        reason = str(error) or type(error).__name__
        pause = await deliveries.failed(database, delivery, reason)
        metrics.WEBHOOKS.labels("failed" if pause else "given_up").inc()
        log.warning("webhook not delivered", video_id=delivery.video_id, reason=reason, next_try_in=pause)
    else:
        await deliveries.delivered(database, delivery)
        metrics.WEBHOOKS.labels("delivered").inc()
        log.info("webhook delivered", video_id=delivery.video_id, tries=delivery.tries)


async def _send(client: httpx.AsyncClient, settings: Settings, delivery: Delivery) -> None:
    target = await _look_up(delivery.url, private=settings.webhook_private)
    body = json.dumps({"id": delivery.id, **delivery.payload}, separators=(",", ":")).encode()
    moment = int(time.time())
    headers = {
        "Host": target.host,
        "Content-Type": "application/json",
        "User-Agent": f"Framekeeper/{__version__}",
        "webhook-id": delivery.id,
        "webhook-timestamp": str(moment),
        "webhook-signature": signature(settings.webhook_secret, delivery.id, moment, body),
    }
    name = httpx.URL(delivery.url).host
    request = client.build_request(
        "POST", target.url, content=body, headers=headers, extensions={"sni_hostname": name}
    )
    response = await client.send(request, stream=True)
    await response.aclose()
    if not response.is_success:
        raise NotDelivered(f"the receiver answered {response.status_code}")


async def _look_up(url: str, *, private: bool) -> Target:
    """The URL with its host replaced by an address that may be connected to. Raises NotDelivered."""
    given = httpx.URL(url)
    port = given.port or (443 if given.scheme == "https" else 80)
    try:
        found = await asyncio.get_running_loop().getaddrinfo(given.host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # UnicodeError: a label that is empty or too long
        raise NotDelivered(f"{given.host} cannot be looked up: {error}") from None
    addresses = [str(each[4][0]) for each in found]
    if not private and any(_is_private(address) for address in addresses):
        raise NotDelivered(f"{given.host} is an address of a private network")
    host = given.host if given.port is None else f"{given.host}:{given.port}"
    return Target(given.copy_with(host=addresses[0], port=port), host)


def _is_private(host: str) -> bool:
    """Whether a literal address is none of the public internet; False for a name."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return not (mapped or address).is_global or (mapped or address).is_multicast
