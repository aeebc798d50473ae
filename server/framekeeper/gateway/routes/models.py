"""Models: what the registered engines serve."""

from __future__ import annotations

from fastapi import APIRouter

from framekeeper.errors import ModelNotFound
from framekeeper.gateway.auth import ReaderOf
from framekeeper.gateway.schemas import ModelList, ModelObject
from framekeeper.gateway.state import DatabaseOf
from framekeeper.jobs.engines import Engine, all_engines
from framekeeper.jobs.fields import shown

router = APIRouter(prefix="/v1/models", tags=["models"])


@router.get("")
async def list_models(_caller: ReaderOf, database: DatabaseOf) -> ModelList:
    """All models that have an engine, ready or not."""
    return ModelList(data=_models(await all_engines(database)))


@router.get("/{model}")
async def retrieve(model: str, _caller: ReaderOf, database: DatabaseOf) -> ModelObject:
    """One model."""
    models = _models(await all_engines(database))
    for candidate in models:
        if candidate.id == model:
            return candidate
    choices = ", ".join(one.id for one in models) or "none yet"
    raise ModelNotFound(f"The model {shown(model)} is not served here; served are: {choices}.", param="model")


def _models(engines: list[Engine]) -> list[ModelObject]:
    created: dict[str, int] = {}
    for engine in engines:
        moment = int(engine.started_at.timestamp())
        created[engine.model] = min(moment, created.get(engine.model, moment))
    return [ModelObject(id=model, created=moment) for model, moment in sorted(created.items())]
