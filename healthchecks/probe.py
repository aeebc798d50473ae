"""What the probes share: one request, one line of output, exit status 0 or 1. Standard library only."""

from __future__ import annotations

import http.client
import json
import os
import signal
import sys
import time
import urllib.error
import urllib.request
from types import FrameType
from typing import Any

DEFAULT_URL = "http://127.0.0.1:8000"
VARIABLE = "FRAMEKEEPER_HEALTH_URL"
TIMEOUT_SECONDS = 5.0
MOST_BYTES = 65536


def main(path: str) -> int:
    """Ask `path` of the URL given as argument or in the environment; say what it answered."""
    base = sys.argv[1] if len(sys.argv) > 1 else os.environ.get(VARIABLE) or DEFAULT_URL
    url = base.rstrip("/") + path
    if not url.startswith(("http://", "https://")):
        print(f"{base!r} is not a URL: give http://HOST:PORT as argument or in {VARIABLE}")
        return 1
    # urllib's timeout is one for each read; this is one for all.
    signal.signal(signal.SIGALRM, _give_up)
    signal.setitimer(signal.ITIMER_REAL, TIMEOUT_SECONDS)
    begin = time.monotonic()
    good, words = _ask(url)
    print(f"{url}: {' '.join(words.split())} ({time.monotonic() - begin:.2f} s)")
    return 0 if good else 1


def _ask(url: str) -> tuple[bool, str]:
    # Without proxies: a probe is about this very address.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=2 * TIMEOUT_SECONDS) as answer:
            return answer.status == 200, _words(answer.status, answer.read(MOST_BYTES))
    except urllib.error.HTTPError as error:
        return False, _words(error.code, error.read(MOST_BYTES))
    except urllib.error.URLError as error:
        return False, f"no answer: {error.reason}"
    except TimeoutError:
        return False, f"no answer within {TIMEOUT_SECONDS:g} s"
    except (OSError, ValueError, http.client.HTTPException) as error:
        return False, f"no answer: {error or type(error).__name__}"


def _give_up(_signal: int, _frame: FrameType | None) -> None:
    raise TimeoutError


def _words(status: int, body: bytes) -> str:
    try:
        facts: Any = json.loads(body)
    except ValueError:
        facts = None
    if not isinstance(facts, dict):
        return f"{status}, which is not an answer of Framekeeper"
    reasons = facts.get("reasons")
    if isinstance(reasons, list) and reasons:
        return f"{status} {' '.join(str(reason) for reason in reasons)}"
    return f"{status} {facts.get('status', 'without a status')}"
