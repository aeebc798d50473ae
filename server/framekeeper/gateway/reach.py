"""Who reaches the gateway, and under which names it and the supervisor answer where they ask for no key.

A page of a stranger's site may have its own name point at this service (DNS rebinding), and is then of the
same origin to a browser: its requests have the stranger's name as Host. So a gateway without keys answers to
names only that no stranger can have: https://github.com/brannondorsey/dns-rebind-toolkit shows the attack.
"""

from __future__ import annotations

import re
import socket
from ipaddress import IPv4Address, IPv6Address, ip_address

from framekeeper.settings import Settings

#: Kept out of the public DNS: RFC 6762, RFC 8375, ICANN's resolution 2024.07.29.06. Kubernetes' names end
#: with cluster.local, Docker's name of the host with internal.
PRIVATE = (".localhost", ".local", ".internal", ".home.arpa")
ANY = "*"
_HOST = re.compile(r"(?:\[([^][]*)\]|([^:]*))(?::[0-9]*)?", re.ASCII)


def is_loopback(host: str) -> bool:
    """Whether a host is this machine as seen by itself: 127.0.0.0/8, ::1, localhost and names below it."""
    address = _address(host)
    if address is None:
        return host.lower() == "localhost" or host.lower().endswith(".localhost")
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_loopback


def reached_beyond_loopback(settings: Settings) -> bool:
    """Whether other machines reach the API: by where a container's port is published, else by `host`."""
    if settings.publish:
        return not is_loopback(settings.publish.rpartition(":")[0].rstrip(":").strip("[]"))
    return not is_loopback(settings.host)


def open_to_all(settings: Settings) -> str | None:
    """The warning for a gateway that others reach and that asks for no key, unless `auth` was set to that."""
    if settings.auth == "on" or "auth" in settings.model_fields_set or not reached_beyond_loopback(settings):
        return None
    name, value = ("PUBLISH", settings.publish) if settings.publish else ("HOST", settings.host)
    return (
        f"FRAMEKEEPER_{name}={value} without API keys: whoever reaches it may make, see and delete every "
        "video. Set FRAMEKEEPER_AUTH=on and make keys (`framekeeper keys create NAME`), or "
        "FRAMEKEEPER_AUTH=off if that is meant."
    )


class Names:
    """The Host headers that are answered: at the gateway's port, or at one on `host` that asks for no key."""

    def __init__(self, settings: Settings, host: str | None = None) -> None:
        named = {each.strip().lower() for each in settings.allowed_hosts.split(",")} - {""}
        self._any = (host is None and settings.auth == "on") or ANY in named
        host = host or settings.host
        self._named = named | {host.lower(), socket.gethostname().lower()}
        # By the socket: inside a container, beside which other containers are.
        self._loopback_only = is_loopback(host)

    def include(self, header: str | None) -> bool:
        """Whether a request with this header is answered. Browsers always send one; some probes do not."""
        if self._any or header is None:
            return True
        host = _without_port(header).lower().removesuffix(".")
        if not host:
            return False
        if host in self._named or is_loopback(host):
            return True
        if self._loopback_only:
            # Whoever is in the same network may give a private name, but nobody else comes here by one.
            return False
        return _address(host) is not None or "." not in host or host.endswith(PRIVATE)


def _without_port(header: str) -> str:
    """The name or address; nothing where the header is no host with or without a port."""
    match = _HOST.fullmatch(header)
    return (match[1] or match[2] or "") if match else ""


def _address(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None
