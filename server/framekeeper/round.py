"""One round of what goes on for ever, such as a heartbeat: no error of one is the end of all."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import structlog

from framekeeper.errors import DatabaseUnavailable

log = structlog.get_logger(__name__)


async def went_well(work: Callable[[], Awaitable[object]], what: str) -> bool:
    """Do it; whether it could be done. The caller decides when it is done again, and does so for ever.

    A database that is away is told by its pool. Any other error is told here, as `what` that failed.
    """
    try:
        await work()
    except DatabaseUnavailable:
        return False
    except Exception:
        log.exception(f"{what} failed")
        return False
    return True
