"""Systems that break on order, and what tests ask of them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg

from cluster import Cluster, new_database
from framekeeper.database.pool import Database
from framekeeper.jobs import incidents, lookup, submit
from framekeeper.jobs.incidents import IncidentRow
from framekeeper.jobs.video import Video, VideoRequest, VideoState
from system import System, fault_profile, wait_for

Start = Callable[..., System]
ILLEGAL_ACCESS = "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"
OUT_OF_MEMORY = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 640.00 MiB. GPU 0 has a total capacity of "
    "23.52 GiB of which 101.00 MiB is free."
)
REQUEST = VideoRequest(
    prompt="a cat",
    negative_prompt=None,
    width=64,
    height=64,
    num_frames=9,
    fps=8,
    num_inference_steps=10,
    guidance_scale=4.0,
    guidance_scale_2=3.0,
    boundary_ratio=0.875,
    flow_shift=5.0,
    seed=1,
)


def begin(
    home: Path,
    database_url: str,
    faults: list[dict[str, Any]],
    *,
    wait: bool = True,
    script: dict[str, Any] | None = None,
    **settings: Any,
) -> System:
    """Start a system whose engine breaks as `faults` say."""
    profile = fault_profile(home / "profiles", faults, **(script or {}))
    system = System(home / "system", database_url, profile=profile, engine_python=sys.executable, **settings)
    system.start_supervisor()
    if wait:
        system.wait_ready(30)
    return system


def serving(cluster: Cluster, template: str, home: Path, **script: Any) -> Iterator[System]:
    """One supervisor with the fault backend as `script` says, and one gateway; for fixtures."""
    for url in new_database(cluster, template):
        system = begin(home, url, [], script=script)
        try:
            system.urls = [system.start_gateway()]
            yield system
            system.close()
        finally:
            system.abandon()


def with_database(system: System, work: Callable[[Database], Any]) -> Any:
    async def run() -> Any:
        database = Database(system.database_url, size=2)
        await database.open()
        try:
            return await work(database)
        finally:
            await database.close()

    return asyncio.run(run())


def submitted(system: System, **changes: Any) -> str:
    fields = {name: getattr(REQUEST, name) for name in REQUEST.__struct_fields__}
    request = VideoRequest(**(fields | changes))

    async def work(database: Database) -> str:
        return (await submit.submit(database, "test-model", request)).id

    return str(with_database(system, work))


def found(system: System, video_id: str) -> Video:
    async def work(database: Database) -> Video:
        return await lookup.find(database, video_id)

    video: Video = with_database(system, work)
    return video


def _when(
    system: System, video_id: str, what: str, true: Callable[[str, int], bool], seconds: float
) -> Video:
    """Wait until it is true of the job's state and step.

    By one connection: a pool for each look takes longer than a step, which is over before the test can act.
    """
    query = "SELECT state, step FROM videos WHERE id = %s"
    with psycopg.connect(system.database_url, autocommit=True) as connection:

        def holds() -> bool:
            row = connection.execute(query, [video_id]).fetchone()
            return row is not None and true(*row)

        wait_for(what, holds, seconds, every=0.01)
    return found(system, video_id)


def final(system: System, video_id: str, seconds: float = 30) -> Video:
    return _when(system, video_id, "the job is final", lambda state, step: VideoState(state).final, seconds)


def running(system: System, video_id: str, step: int = 2) -> Video:
    return _when(system, video_id, "the job runs", lambda state, at: at >= step, 20)


def incident_rows(system: System) -> list[IncidentRow]:
    """All incidents, the newest first."""

    async def work(database: Database) -> list[IncidentRow]:
        return (await incidents.page(database, limit=100))[0]

    rows: list[IncidentRow] = with_database(system, work)
    return rows
