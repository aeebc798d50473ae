"""The middlewares around the application, the innermost first."""

from __future__ import annotations

from fastapi import FastAPI

from framekeeper.gateway.guard import Guard
from framekeeper.gateway.headers import SecureHeaders
from framekeeper.gateway.observe import Observe
from framekeeper.gateway.reach import Names
from framekeeper.settings import Settings


def install(app: FastAPI, settings: Settings) -> None:
    """Lay them around `app`. What one of them refuses is still counted, and has its headers."""
    app.add_middleware(Guard, names=Names(settings), operation_port=settings.operation_port)
    app.add_middleware(Observe)
    app.add_middleware(SecureHeaders)
