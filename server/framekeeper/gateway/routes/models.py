"""Models: what the registered engines serve."""

from __future__ import annotations

from typing import Any, Literal

from fastapi import APIRouter
from pydantic import BaseModel, Field

from framekeeper.errors import ModelNotFound
from framekeeper.gateway.auth import ViewerOf
from framekeeper.gateway.outlook import Outlook, OutlookOf
from framekeeper.gateway.state import DatabaseOf
from framekeeper.jobs.catalogue import Offer, offers
from framekeeper.jobs.engines import all_engines
from framekeeper.jobs.estimate import estimate
from framekeeper.jobs.fields import shown
from framekeeper.jobs.reference import Mode

router = APIRouter(prefix="/v1/models", tags=["models"])


class ModelLimits(BaseModel):
    """The largest job that an engine makes at present."""

    size: str = Field(description="Any width and height of at most this area.")
    num_frames: int
    steps: int
    fps: int


class ModelObject(BaseModel):
    """A model that some engine serves."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "framekeeper"
    # Ours.
    limits: ModelLimits
    defaults: dict[str, Any] = Field(description="What a job is made with where it says nothing.")
    sizes: list[tuple[int, int]] = Field(description="Suggested [width, height], the default first.")
    image_input: bool = Field(description="Whether it takes an input_reference.")
    input_reference: Mode = Field(description="Whether a video may or must start from a picture.")
    seconds_per_job: float | None = Field(
        description="What a job of the defaults takes an engine, from measured seconds; null: not known."
    )

    @classmethod
    def of(cls, offer: Offer, outlook: Outlook) -> ModelObject:
        """From what its engines registered, and what was measured."""
        measured = outlook.known(offer.model).measured
        seconds = estimate(offer.default_shape, int(offer.defaults["num_inference_steps"]), measured)
        return cls(
            id=offer.model,
            created=offer.created,
            limits=ModelLimits(
                size=offer.size, num_frames=offer.num_frames, steps=offer.steps, fps=offer.fps
            ),
            defaults=dict(offer.defaults),
            sizes=list(offer.sizes),
            image_input=offer.image != "none",
            input_reference=offer.image,
            seconds_per_job=None if seconds is None else round(seconds, 1),
        )


class ModelList(BaseModel):
    """All models."""

    object: Literal["list"] = "list"
    data: list[ModelObject]


@router.get("")
async def list_models(_caller: ViewerOf, outlook: OutlookOf, database: DatabaseOf) -> ModelList:
    """All models that have an engine, ready or not."""
    await outlook.line(database)
    return ModelList(data=[ModelObject.of(offer, outlook) for offer in offers(await all_engines(database))])


@router.get("/{model}")
async def retrieve(model: str, _caller: ViewerOf, outlook: OutlookOf, database: DatabaseOf) -> ModelObject:
    """One model."""
    await outlook.line(database)
    served = offers(await all_engines(database))
    for offer in served:
        if offer.model == model:
            return ModelObject.of(offer, outlook)
    choices = ", ".join(offer.model for offer in served) or "none yet"
    raise ModelNotFound(f"The model {shown(model)} is not served here; served are: {choices}.", param="model")
