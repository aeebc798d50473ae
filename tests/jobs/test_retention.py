"""What is kept, what expires, and that nothing is left behind or taken too early."""

from __future__ import annotations

import asyncio
import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest
from psycopg.types.json import Jsonb

from framekeeper.database.pool import Database
from framekeeper.engine.tidy import keep_of, tidy
from framekeeper.errors import VideoExpired, VideoNotFound
from framekeeper.gateway.content import locate
from framekeeper.jobs import engines, incidents, lookup, retention, settle
from framekeeper.jobs.engines import EngineState
from framekeeper.jobs.incidents import IncidentRow, Rung
from framekeeper.jobs.retention import Keep
from framekeeper.jobs.submit import Terms, submit
from framekeeper.jobs.video import Video, VideoState
from framekeeper.media.store import INPUT_FILE, MediaStore
from framekeeper.settings import Settings
from jobs.records import ADMITS, DEFAULTS, request


async def finished(
    database: Database, store: MediaStore, *, owner: str | None = None, size: int = 10, age: float = 0
) -> Video:
    video = await submit(database, "tiny", request(), Terms(owner=owner))
    held = await settle.claim(database, video.id, engine_id="e", run_id="r")
    assert held is not None
    directory = store.directory(video.id)
    directory.mkdir(parents=True)
    for name in ("1.mp4", "1.jpg"):
        (directory / name).write_bytes(b"x" * size)
    done = await settle.complete(
        database, held, video_file="1.mp4", thumbnail_file="1.jpg", size=size, facts={}
    )
    assert done is not None
    async with database.transaction() as connection:
        await connection.execute(
            "UPDATE videos SET completed_at = clock_timestamp() - make_interval(secs => %s) WHERE id = %s",
            (age, video.id),
        )
    return done


async def states(database: Database, *videos: Video) -> list[str]:
    return [(await lookup.find(database, video.id)).state.value for video in videos]


@pytest.fixture
def store(tmp_path: Path) -> MediaStore:
    return MediaStore(tmp_path / "media")


async def test_nothing_expires_without_limits(database: Database, store: MediaStore) -> None:
    old = await finished(database, store, age=1e7)
    await tidy(database, store, Keep())
    assert await states(database, old) == ["completed"]
    assert (store.directory(old.id) / "1.mp4").exists()


async def test_old_video_expires_and_its_files_go(database: Database, store: MediaStore) -> None:
    old, young = await finished(database, store, age=100), await finished(database, store, age=10)
    await tidy(database, store, Keep(seconds=60))
    assert await states(database, old, young) == ["expired", "completed"]
    assert not store.directory(old.id).exists()
    with pytest.raises(VideoExpired) as refused:
        locate(store.root, await lookup.find(database, old.id), "video")
    assert refused.value.status == 410
    told = (await lookup.find(database, young.id)).expires_at
    assert told is not None
    assert 30 < told.timestamp() - time.time() < 60


@pytest.mark.parametrize(
    ("keep", "reason"), [(Keep(videos=2), "count"), (Keep(bytes=25), "bytes")], ids=["count", "bytes"]
)
async def test_newest_of_each_owner_are_kept(
    database: Database, store: MediaStore, keep: Keep, reason: str
) -> None:
    mine = [await finished(database, store, owner="a", age=age) for age in (30, 20, 10)]
    others = [await finished(database, store, owner="b", age=age) for age in (300, 200)]
    expired = await retention.expire(database, keep)
    assert [(each.video.id, each.reason) for each in expired] == [(mine[0].id, reason)]
    assert await states(database, *mine, *others) == ["expired"] + ["completed"] * 4


async def test_limits_of_a_key_go_before_the_general_ones(
    database: Database, store: MediaStore, postgres_url: str
) -> None:
    with psycopg.connect(postgres_url) as connection:
        connection.execute(
            "INSERT INTO api_keys (id, name, hash, scopes, limits) VALUES ('a', 'a', 'h', '{}', %s)",
            [Jsonb({"retention_seconds": 1000, "retention_videos": 1})],
        )
    mine = [await finished(database, store, owner="a", age=age) for age in (90, 80)]
    other = await finished(database, store, owner="b", age=90)
    await tidy(database, store, Keep(seconds=60))
    assert await states(database, *mine, other) == ["expired", "completed", "expired"]


async def test_files_left_by_a_kill_between_the_row_and_the_removal_are_swept(
    database: Database, store: MediaStore
) -> None:
    old = await finished(database, store, age=100)
    await retention.expire(database, Keep(seconds=60))
    assert store.directory(old.id).exists()
    await tidy(database, store, Keep(seconds=60))
    assert not store.directory(old.id).exists()


async def test_directory_without_a_row_goes_only_when_it_is_old(
    database: Database, store: MediaStore
) -> None:
    video = await submit(database, "tiny", request())
    forgotten, fresh = video.id[:-4] + "0000", video.id[:-4] + "1111"
    for name in (forgotten, fresh, "lost+found", "notes"):
        (store.root / name).mkdir(parents=True)
    (store.directory(forgotten) / "1.mp4").write_bytes(b"x")
    past = time.time() - 2 * retention.ORPHAN_SECONDS
    for path in (store.directory(forgotten) / "1.mp4", store.directory(forgotten), store.root / "notes"):
        os.utime(path, (past, past))
    await tidy(database, store, Keep())
    assert sorted(path.name for path in store.root.iterdir()) == sorted([fresh, "lost+found", "notes"])


async def test_files_of_waiting_and_running_jobs_stay_however_old(
    database: Database, store: MediaStore
) -> None:
    waiting, running = await submit(database, "tiny", request()), await submit(database, "tiny", request())
    await settle.claim(database, running.id, engine_id="e", run_id="r")
    for video in (waiting, running):
        store.directory(video.id).mkdir(parents=True)
        os.utime(store.directory(video.id), (1, 1))
    await tidy(database, store, Keep(seconds=1, videos=1, bytes=1, record_seconds=1))
    assert all(store.directory(video.id).exists() for video in (waiting, running))


async def test_picture_stays_until_its_job_is_final_and_of_no_job_until_it_is_old(
    database: Database, store: MediaStore
) -> None:
    terms = Terms(input_file=INPUT_FILE)
    waiting, running, done = [await submit(database, "tiny", request(), terms) for _ in range(3)]
    assert waiting.input_file == f"inputs/{waiting.id}.png"
    await settle.claim(database, running.id, engine_id="e", run_id="r")
    held = await settle.claim(database, done.id, engine_id="e", run_id="r")
    assert held is not None
    await settle.complete(database, held, video_file="1.mp4", thumbnail_file="1.jpg", size=1, facts={})
    store.input(done.id).parent.mkdir(parents=True)
    old, young = store.input(done.id[:-4] + "0000"), store.input(done.id[:-4] + "1111")
    half, others = old.with_name(".0.part"), old.with_name("holiday.png")
    for path in (*(store.input(each.id) for each in (waiting, running, done)), old, young, half, others):
        path.write_bytes(b"x")
        if path != young:
            os.utime(path, (1, 1))
    await tidy(database, store, Keep())
    left = [store.input(waiting.id), store.input(running.id), young, others]
    assert sorted(store.input(done.id).parent.iterdir()) == sorted(left)


async def test_record_is_forgotten_after_its_own_time(database: Database, store: MediaStore) -> None:
    old, kept = await finished(database, store, age=100), await finished(database, store)
    await tidy(database, store, Keep(seconds=60, record_seconds=1000))
    assert await states(database, old) == ["expired"]
    async with database.transaction() as connection:
        await connection.execute(
            "UPDATE videos SET expires_at = clock_timestamp() - interval '2000 s' WHERE id = %s", [old.id]
        )
    await tidy(database, store, Keep(seconds=60, record_seconds=1000))
    with pytest.raises(VideoNotFound):
        await lookup.find(database, old.id)
    assert (await lookup.find(database, kept.id)).state is VideoState.COMPLETED


async def test_two_supervisors_expire_each_video_once(database: Database, store: MediaStore) -> None:
    videos = [await finished(database, store, age=100 + n) for n in range(6)]
    found = await asyncio.gather(*(retention.expire(database, Keep(seconds=60)) for _ in range(3)))
    assert sorted(each.video.id for some in found for each in some) == sorted(video.id for video in videos)


async def register(database: Database, name: str, *, model: str = "tiny", days: float = 0) -> None:
    """An engine that stepped down, and was last heard of so long ago."""
    await engines.register(
        database, engine_id=name, host="host", run_id=name, model=model, profile="p", runtime="r",
        admits=ADMITS, defaults=DEFAULTS,
    )  # fmt: skip
    await incidents.set_rung(database, name, "p", Rung(rung=1, reason="it ran out of memory"))
    await database.execute(
        "INSERT INTO model_service VALUES (%(model)s) ON CONFLICT DO NOTHING", {"model": model}
    )
    for change in (
        "engines SET heartbeat_at = heartbeat_at - {} WHERE id = %(name)s",
        "engine_rungs SET rung_since = rung_since - {} WHERE engine_id = %(name)s",
        "model_service SET served_at = served_at - {} WHERE model = %(model)s",
    ):
        await database.execute(
            f"UPDATE {change}".format("make_interval(secs => %(age)s)"),
            {"age": days * 86400, "name": name, "model": model},
        )


async def left(database: Database) -> tuple[list[str], list[str], list[str]]:
    """Engines, rungs and models that are known."""
    found = []
    for query in (
        "SELECT id AS name FROM engines ORDER BY id",
        "SELECT engine_id AS name FROM engine_rungs ORDER BY engine_id",
        "SELECT model AS name FROM model_service ORDER BY model",
    ):
        found.append([row["name"] for row in await database.fetch_all(query)])
    return found[0], found[1], found[2]


async def test_engines_of_hosts_that_are_gone_are_forgotten_with_what_was_kept_for_them(
    database: Database,
) -> None:
    await register(database, "gone/0", model="retired", days=31)
    await register(database, "gone/1", model="wanted", days=31)
    await register(database, "away/0", model="away", days=29)
    await register(database, "here/0", model="tiny")
    waits = await submit(database, "wanted", request())
    everything = await left(database)
    keep = Keep(engine_seconds=30 * 86400)
    silent = await retention.forget_engines(database, keep)
    assert {name for name, _ in silent} == {"gone/0", "gone/1"}
    assert await left(database) == everything, "silent in one look only"
    assert await retention.forget_engines(database, keep, silent) == frozenset()
    names = ["away/0", "here/0"]
    assert await left(database) == (names, names, ["away", "tiny", "wanted"])
    assert await states(database, waits) == ["queued"]


async def test_engine_that_was_heard_of_between_two_looks_is_kept(database: Database) -> None:
    await register(database, "here/0", days=31)  # or the clock was put forward by a month
    keep = Keep(engine_seconds=30 * 86400)
    silent = await retention.forget_engines(database, keep)
    assert await engines.report(
        database, engine_id="here/0", run_id="here/0", state=EngineState.READY, phase=None, detail=None,
        restarts=0, facts=None,
    )  # fmt: skip
    assert await retention.forget_engines(database, keep, silent) == frozenset()
    assert await left(database) == (["here/0"], ["here/0"], ["tiny"])


async def test_nothing_of_engines_and_incidents_is_forgotten_without_limits(
    database: Database, store: MediaStore
) -> None:
    await register(database, "gone/0", days=10_000)
    await incident(database, "inc_old", days=10_000)
    assert await retention.forget_engines(database, Keep()) == frozenset()
    await tidy(database, store, Keep())
    assert await left(database) == (["gone/0"], ["gone/0"], ["tiny"])
    assert len((await incidents.page(database, limit=10))[0]) == 1


async def incident(database: Database, name: str, *, days: float) -> None:
    row = IncidentRow(
        id=name, at=datetime.now(UTC) - timedelta(days=days), host="host", engine_id="host/0", profile="p",
        rung=0, phase="denoising", video_id=None, attempt=None, signature="unknown", record={},
        ready_again_seconds=None,
    )  # fmt: skip
    await incidents.store(database, row)


async def test_old_incidents_are_forgotten_and_newer_ones_kept(database: Database, store: MediaStore) -> None:
    for name, days in (("inc_old", 181.0), ("inc_new", 179.0)):
        await incident(database, name, days=days)
    await tidy(database, store, Keep(incident_seconds=180 * 86400))
    rows, _ = await incidents.page(database, limit=10)
    assert [row.id for row in rows] == ["inc_new"]


def test_what_is_kept_is_what_the_settings_say() -> None:
    settings = Settings(
        retention_days=1, retention_videos=2, retention_bytes=3, record_days=4, incident_days=5, engine_days=6
    )
    day = 86400.0
    assert keep_of(settings) == Keep(
        seconds=day,
        videos=2,
        bytes=3,
        record_seconds=4 * day,
        incident_seconds=5 * day,
        engine_seconds=6 * day,
    )
