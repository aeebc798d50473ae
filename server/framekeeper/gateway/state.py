"""What a route needs of the process: its settings and its database.

Asynchronous, though nothing waits: FastAPI would take each synchronous one to a thread.
"""

from __future__ import annotations

from typing import Annotated, cast

from fastapi import Depends, Request

from framekeeper.database.pool import Database
from framekeeper.media.condition import Condition
from framekeeper.settings import Settings


async def _settings(request: Request) -> Settings:
    return cast(Settings, request.app.state.settings)


async def _database(request: Request) -> Database:
    return cast(Database, request.app.state.database)


async def _media(request: Request) -> Condition:
    return cast(Condition, request.app.state.media)


SettingsOf = Annotated[Settings, Depends(_settings)]
DatabaseOf = Annotated[Database, Depends(_database)]
MediaOf = Annotated[Condition, Depends(_media)]
