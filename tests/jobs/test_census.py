import pytest

from framekeeper.database.pool import Database
from framekeeper.jobs import census, engines, settle
from framekeeper.jobs.engines import EngineState
from framekeeper.jobs.shape import shape_class
from framekeeper.jobs.submit import submit
from jobs.records import ADMITS, DEFAULTS, request


async def serve(database: Database, engine_id: str, model: str = "tiny") -> None:
    await engines.register(
        database, engine_id=engine_id, host="host", run_id="run", model=model, profile="cpu-tiny",
        runtime="cpu", admits=ADMITS, defaults=DEFAULTS,
    )  # fmt: skip
    await engines.report(
        database, engine_id=engine_id, run_id="run", state=EngineState.READY, phase=None, detail=None,
        restarts=0, admits=ADMITS, facts=None,
    )  # fmt: skip


async def test_an_idle_service_has_figures_of_nothing(database: Database) -> None:
    await serve(database, "host/0")
    found = await census.take(database, stale_seconds=30)
    assert found.queues == ()
    assert found.in_progress == {"tiny": 0}
    assert found.queue_seconds == {"tiny": 0.0}
    assert (found.media_bytes, found.webhooks_waiting) == (0, 0)


async def test_waiting_jobs_are_counted_by_model_and_shape_class(database: Database) -> None:
    large = request(width=128, height=128, num_frames=49)
    for wanted in (request(), request(), large):
        await submit(database, "tiny", wanted)
    await submit(database, "other", request())
    found = await census.take(database, stale_seconds=30)
    small, big = str(shape_class(64, 64, 9)), str(shape_class(128, 128, 49))
    assert {(q.model, q.shape_class): q.depth for q in found.queues} == {
        ("tiny", small): 2,
        ("tiny", big): 1,
        ("other", small): 1,
    }
    assert all(0 <= queue.oldest_seconds < 60 for queue in found.queues)


async def test_a_job_that_an_engine_makes_waits_no_more_and_a_finished_one_is_bytes(
    database: Database,
) -> None:
    await serve(database, "host/0")
    video = await submit(database, "tiny", request())
    claimed = await settle.claim(database, video.id, engine_id="host/0", run_id="run")
    assert claimed is not None
    found = await census.take(database, stale_seconds=30)
    assert (found.queues, found.in_progress) == ((), {"tiny": 1})
    await settle.complete(database, claimed, video_file="1.mp4", thumbnail_file="1.jpg", size=1234, facts={})
    found = await census.take(database, stale_seconds=30)
    assert (found.in_progress, found.media_bytes) == ({"tiny": 0}, 1234)


async def test_the_wait_of_a_new_job_is_known_once_something_was_measured(database: Database) -> None:
    await serve(database, "host/0")
    for _ in range(3):
        await submit(database, "tiny", request())
    assert (await census.take(database, stale_seconds=30)).queue_seconds == {}
    await measured(database, seconds=10)
    assert (await census.take(database, stale_seconds=30)).queue_seconds == {"tiny": pytest.approx(30)}


async def test_nobody_knows_the_wait_while_no_engine_serves(database: Database) -> None:
    await submit(database, "tiny", request())
    await measured(database, seconds=10)
    assert (await census.take(database, stale_seconds=30)).queue_seconds == {}


async def measured(database: Database, *, seconds: float) -> None:
    await database.fetch_all(
        """
        INSERT INTO measured_seconds (model, profile, width, height, num_frames, steps, seconds)
        VALUES ('tiny', 'cpu-tiny', 64, 64, 9, 6, %(seconds)s) RETURNING model
        """,
        {"seconds": seconds},
    )
