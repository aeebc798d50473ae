"""The metrics that are read and not counted: queue, memory, disk; the supervisor reads them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import psutil
import structlog

from framekeeper import metrics
from framekeeper.database.pool import Database
from framekeeper.engine import card_memory, leftovers
from framekeeper.errors import DatabaseUnavailable
from framekeeper.jobs import census
from framekeeper.jobs.shape import admitted_queues
from framekeeper.media.store import MediaStore
from framekeeper.metrics.snapshot import Family, Values
from framekeeper.profiles.schema import parse_size
from framekeeper.round import went_well
from framekeeper.settings import Settings

if TYPE_CHECKING:
    from framekeeper.engine.group import DeviceGroup

log = structlog.get_logger()

#: Seconds between two looks. Prometheus commonly asks every 15 to 60 seconds.
CENSUS_SECONDS = 5.0
#: nvidia-smi takes up to a second, where nothing keeps the driver awake.
MEMORY_SECONDS = 15.0


async def keep_census(settings: Settings, database: Database, groups: Sequence[DeviceGroup]) -> None:
    """Keep the figures of database and disk up to date, for ever."""
    while True:
        look = partial(_look_into_database, settings, database, groups)
        await went_well(look, "counting jobs for the metrics")
        await asyncio.sleep(CENSUS_SECONDS)


async def keep_memory(settings: Settings, groups: Sequence[DeviceGroup]) -> None:
    """Keep the figures of memory up to date, for ever."""
    while True:
        await went_well(partial(_look_at_memory, settings, groups), "reading memory for the metrics")
        await asyncio.sleep(MEMORY_SECONDS)


async def _look_into_database(settings: Settings, database: Database, groups: Sequence[DeviceGroup]) -> None:
    values: dict[Family, Values] = {metrics.DATABASE_UP: {(): 0}}
    with suppress(DatabaseUnavailable):
        found = await census.take(database, stale_seconds=settings.stale_seconds)
        values = of_census(found, listened(groups)) | {metrics.DATABASE_UP: {(): 1}}
    with suppress(OSError):
        store = MediaStore(settings.media_directory)
        values[metrics.MEDIA_FREE] = {(): await asyncio.to_thread(store.free_bytes)}
    metrics.census.replace(values)


def listened(groups: Sequence[DeviceGroup]) -> set[tuple[str, str]]:
    """Model and shape class of every queue that these engines listen to on their profile."""
    queues = set()
    for group in groups:
        profile = group.status.profile
        width, height = parse_size(profile.admits.size)
        for name in admitted_queues(profile.serves, width, height, profile.admits.num_frames):
            model, _, shape_class = name.rpartition("/")
            queues.add((model, shape_class))
    return queues


def of_census(found: census.Census, queues: set[tuple[str, str]]) -> dict[Family, Values]:
    """The figures as series; `queues` are there also when nothing waits in them."""
    depth: dict[tuple[str, ...], float] = dict.fromkeys(queues, 0.0)
    oldest: dict[tuple[str, ...], float] = dict.fromkeys(queues, 0.0)
    for queue in found.queues:
        depth[queue.model, queue.shape_class] = queue.depth
        oldest[queue.model, queue.shape_class] = queue.oldest_seconds
    return {
        metrics.QUEUE_DEPTH: depth,
        metrics.QUEUE_OLDEST: oldest,
        metrics.QUEUE_SECONDS: {(model,): seconds for model, seconds in found.queue_seconds.items()},
        metrics.MODEL_UNSERVED: {(model,): seconds for model, seconds in found.unserved_seconds.items()},
        metrics.IN_PROGRESS: {(model,): jobs for model, jobs in found.in_progress.items()},
        metrics.WEBHOOKS_WAITING: {(): found.webhooks_waiting},
        metrics.MEDIA_BYTES: {(): found.media_bytes},
    }


async def _look_at_memory(settings: Settings, groups: Sequence[DeviceGroup]) -> None:
    resident: dict[tuple[str, ...], float] = {}
    allocated: dict[tuple[str, ...], float] = {}
    reported: dict[str, int] = {}
    ours: set[int] = set()
    for group in groups:
        pids = await asyncio.to_thread(_processes, settings, group.status.id)
        ours.update(pids)
        resident[group.status.id,] = await asyncio.to_thread(_resident, pids)
        if (held := group.allocated_bytes) is not None:
            allocated[group.status.id,] = held
            reported |= dict.fromkeys(group.course.launch.devices, held)
    values: dict[Family, Values] = {metrics.ENGINE_RESIDENT: resident, metrics.ENGINE_ALLOCATED: allocated}
    cards = await asyncio.to_thread(card_memory.read, ours, reported)
    values[metrics.DEVICE_TOTAL] = {(card.device,): card.total for card in cards}
    used: dict[tuple[str, ...], float] = {}
    for card in cards:
        used[card.device, "engines"], used[card.device, "others"] = card.engines, card.others
    values[metrics.DEVICE_USED] = used
    metrics.memory.replace(values)


def _processes(settings: Settings, engine: str) -> set[int]:
    run = leftovers.find(leftovers.RUN, str(settings.run_directory))
    return set(run) & set(leftovers.find("FRAMEKEEPER_ENGINE", engine))


def _resident(pids: set[int]) -> int:
    total = 0
    for pid in pids:
        with suppress(psutil.Error):
            total += psutil.Process(pid).memory_info().rss
    return total
