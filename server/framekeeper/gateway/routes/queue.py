"""The queue: how long the line of each model is."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel, Field

from framekeeper.gateway.auth import ViewerOf
from framekeeper.gateway.outlook import OutlookOf
from framekeeper.gateway.state import DatabaseOf, SettingsOf
from framekeeper.jobs.line import ModelLine
from framekeeper.settings import Settings

router = APIRouter(prefix="/v1/queue", tags=["models"])


class ModelQueue(BaseModel):
    """The line of one model."""

    model: str
    waiting: int = Field(description="Jobs that wait for an engine.")
    running: int = Field(description="Jobs that an engine works on.")
    seconds: float | None = Field(
        description="Until all of them are done, as estimated; null where that is not known."
    )
    wait_seconds: float | None = Field(description="Until a job that is accepted now would start.")
    limit_jobs: int = Field(description="Most jobs that may wait; one more is answered by 429.")
    limit_seconds: float | None = Field(description="Longest estimated wait; beyond it, 429. Null: any.")

    @classmethod
    def of(cls, line: ModelLine, settings: Settings) -> ModelQueue:
        """From the line as it was looked at."""
        return cls(
            model=line.model,
            waiting=line.waiting,
            running=line.running,
            seconds=_rounded(line.idle_seconds),
            wait_seconds=_rounded(line.wait_seconds),
            limit_jobs=settings.queue_jobs,
            limit_seconds=settings.queue_seconds or None,
        )


class QueueObject(BaseModel):
    """The lines of all models."""

    object: Literal["queue"] = "queue"
    models: list[ModelQueue]


@router.get("")
async def read_queue(
    _caller: ViewerOf, outlook: OutlookOf, database: DatabaseOf, settings: SettingsOf
) -> QueueObject:
    """How much waits for each model, and for how long a new job would."""
    line = await outlook.line(database)
    return QueueObject(models=[ModelQueue.of(each, settings) for _, each in sorted(line.models.items())])


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 1)
