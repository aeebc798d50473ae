"""What holds up everything for a while is no fault of the engine: its job goes on where it was."""

from __future__ import annotations

import time

import psycopg
import pytest

from faulty import Start, final, running, submitted, with_database
from framekeeper.database.pool import Database
from framekeeper.jobs import engines
from framekeeper.jobs.video import VideoState
from system import System, wait_for

pytestmark = pytest.mark.slow


def heartbeat_age(system: System) -> float:
    async def work(database: Database) -> float:
        return (await engines.all_engines(database))[0].age_seconds

    age: float = with_database(system, work)
    return age


def test_database_that_only_reads_for_a_while_costs_no_attempt_and_no_heartbeat(start: Start) -> None:
    system = start([], script={"step_seconds": 0.2})
    video_id = submitted(system, num_inference_steps=10)
    running(system, video_id, 2)
    with psycopg.connect(system.database_url, autocommit=True) as connection:
        name = connection.info.dbname
        connection.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        time.sleep(4)  # the job ends in it
        # As behind a proxy after a failover: connections made meanwhile stay open, and stay read-only.
        connection.execute("SET default_transaction_read_only = off")
        connection.execute(f'ALTER DATABASE "{name}" RESET default_transaction_read_only')
    video = final(system, video_id)
    assert (video.state, video.attempt) == (VideoState.COMPLETED, 1), (video.error_message, system.log())
    time.sleep(2)
    wait_for("the heart beats", lambda: heartbeat_age(system) < 2, 5)
    assert final(system, submitted(system)).state is VideoState.COMPLETED
