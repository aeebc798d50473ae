"""The real supervisor, the real database and real processes; only the backend breaks on order."""

from __future__ import annotations

import os
import signal
from typing import Any

import psycopg
import pytest

from faulty import ILLEGAL_ACCESS, REQUEST, Start, final, found, running, submitted, with_database
from framekeeper.jobs import cancel
from framekeeper.media.encode import read_video
from system import System, wait_for

pytestmark = pytest.mark.slow


def test_a_healthy_engine_makes_the_video_that_was_asked_for(start: Start) -> None:
    system = start([])
    video = final(system, submitted(system))
    assert (video.state, video.attempt, video.progress) == ("completed", 1, 100)
    assert video.video_file is not None
    assert read_video(system.media / video.id / video.video_file).shape == (9, 64, 64, 3)
    assert sorted(p.name for p in (system.media / video.id).iterdir()) == ["1.jpg", "1.mp4", "1.sheet.jpg"]


def test_job_survives_worker_kill(start: Start) -> None:
    system = start([], script={"step_seconds": 0.1})
    video_id = submitted(system)
    running(system, video_id)
    os.kill(system.worker_pid(), signal.SIGKILL)
    video = final(system, video_id)
    assert (video.state, video.attempt, video.tries) == ("completed", 2, 2)
    assert sorted(p.name for p in (system.media / video.id).iterdir()) == ["2.jpg", "2.mp4", "2.sheet.jpg"]
    assert system.engine()["restarts"] == 1


def running_with_a_child(start: Start) -> tuple[System, str, dict[int, str]]:
    """A system, its running job, and its engine's processes; one of them has left the session."""
    child = {"at": "step", "step": 0, "what": "child"}
    system = start([child], script={"step_seconds": 0.1})
    video_id = submitted(system)
    running(system, video_id)
    before = system.engine_processes()
    assert len(before) == 3, "warden, worker, and the child that left the session"
    return system, video_id, before


def survives_warden_kill(system: System, video_id: str, before: dict[int, str]) -> None:
    (warden,) = [pid for pid, command in before.items() if "warden.py" in command]
    os.kill(warden, signal.SIGKILL)
    assert final(system, video_id).state == "completed"
    assert not set(before) & set(system.engine_processes())


def test_job_survives_the_kill_of_a_warden_whose_grandchild_holds_its_output(start: Start) -> None:
    system, video_id, before = running_with_a_child(start)
    survives_warden_kill(system, video_id, before)


def test_job_survives_warden_kill(start: Start) -> None:
    system = start([], script={"step_seconds": 0.1})
    video_id = submitted(system)
    running(system, video_id)
    before = system.engine_processes()
    survives_warden_kill(system, video_id, before)


def test_job_survives_supervisor_kill_and_nothing_of_the_old_run_lives_on(start: Start) -> None:
    system, video_id, _ = running_with_a_child(start)
    half_written = system.media / video_id / "1.mp4.part"
    half_written.parent.mkdir(parents=True)
    half_written.touch()
    system.kill_supervisor()
    wait_for("no process is left", lambda: not system.engine_processes(), 5)
    assert found(system, video_id).state == "in_progress"
    system.start_supervisor()
    video = final(system, video_id)
    assert (video.state, video.attempt) == ("completed", 2)
    assert sorted(path.name for path in half_written.parent.iterdir()) == ["2.jpg", "2.mp4", "2.sheet.jpg"]


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ({"at": "step", "step": 3, "what": "die", "signal": 11}, "segmentation fault"),
        ({"at": "step", "step": 3, "what": "exit", "code": 3}, "exited with code 3"),
        ({"at": "decode", "what": "die", "signal": 9}, "killed from outside"),
        ({"at": "decode", "what": "raise", "text": ILLEGAL_ACCESS}, "memory of the card"),
    ],
)
def test_a_job_that_ends_every_engine_fails_with_the_reason(
    start: Start, fault: dict[str, Any], said: str
) -> None:
    system = start([fault | {"times": 2}], max_attempts=2)
    video = final(system, submitted(system))
    assert (video.state, video.attempt, video.error_code) == ("failed", 2, "engine_failed")
    assert video.error_message is not None
    assert said in video.error_message
    assert ("2 engines ended" in video.error_message) or ("the last of 2 attempts" in video.error_message)
    assert video.incident_id is not None
    assert video.incident_id in video.error_message
    assert final(system, submitted(system)).state == "completed", "and the engine goes on with the next"


@pytest.mark.parametrize("at", ["step", "decode"])
def test_a_hung_engine_is_killed_at_its_deadline_and_the_job_runs_again(start: Start, at: str) -> None:
    system = start([{"at": at, "step": 3, "what": "hang"}])
    video = final(system, submitted(system))
    assert (video.state, video.attempt) == ("completed", 2)
    assert "gave no sign of progress for 3 s" in system.log()


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("nan", "not finite"),
        ("black", "black"),
        ("frozen", "constant"),
        ("few_frames", "5 frames instead of 9"),
    ],
)
def test_frames_that_are_no_picture_fail_the_job_and_renew_the_engine(
    start: Start, what: str, said: str
) -> None:
    system = start([{"at": "decode", "what": what}])
    video = final(system, submitted(system))
    assert (video.state, video.error_code) == ("failed", "frames_invalid")
    assert video.error_message is not None
    assert said in video.error_message
    assert not (system.media / video.id).exists()
    assert final(system, submitted(system)).state == "completed"
    assert system.engine()["restarts"] == 1


def test_a_client_error_fails_the_job_and_never_counts_against_the_engine(start: Start) -> None:
    refuse = {"at": "step", "step": 0, "what": "refuse", "text": "that size is too odd", "param": "size"}
    system = start([refuse])
    video = final(system, submitted(system))
    assert (video.state, video.error_code) == ("failed", "refused_by_engine")
    assert video.error_message == "that size is too odd"
    assert system.engine()["restarts"] == 0


def test_a_failing_load_is_repeated_until_it_works(start: Start) -> None:
    system = start([{"at": "load", "what": "raise", "text": "no kernel image is available", "times": 2}])
    assert system.engine()["restarts"] == 2
    assert final(system, submitted(system)).state == "completed"


def test_an_engine_is_not_ready_before_its_warm_up_video_is_a_picture(start: Start) -> None:
    fault = {"at": "decode", "what": "nan", "warm_up": True, "times": None}
    system = start([fault], wait=False)
    wait_for("the start is given up", lambda: "not finite" in (system.engine()["detail"] or ""), 20)
    assert system.supervisor_says()["http"] == 503
    video_id = submitted(system)
    assert found(system, video_id).state == "queued", "no job reaches an engine that was not proved"


def test_a_hung_warm_up_is_killed_at_its_deadline(start: Start) -> None:
    system = start([{"at": "warm_up", "what": "hang"}], script={"warm_up_seconds": 2})
    assert system.engine()["restarts"] == 1
    assert "warm_up.deadline_seconds (2 s)" in system.log()


def test_cancel_stops_a_running_job_before_its_next_step_and_the_engine_goes_on(start: Start) -> None:
    system = start([], script={"step_seconds": 0.2})
    video_id = submitted(system)
    running(system, video_id)
    with_database(system, lambda database: cancel.request_cancel(database, video_id))
    video = final(system, video_id, 5)
    assert video.state == "cancelled"
    assert video.step < REQUEST.num_inference_steps - 2
    assert final(system, submitted(system)).state == "completed"
    assert system.engine()["restarts"] == 0


def test_cancel_of_a_hung_job_takes_effect_when_the_engine_is_killed(start: Start) -> None:
    system = start([{"at": "step", "step": 3, "what": "hang"}])
    video_id = submitted(system)
    running(system, video_id, 3)
    with_database(system, lambda database: cancel.request_cancel(database, video_id))
    video = final(system, video_id)
    assert (video.state, video.attempt) == ("cancelled", 1)


def test_deleting_a_running_job_leaves_neither_row_nor_file(start: Start) -> None:
    system = start([], script={"step_seconds": 0.1})
    video_id = submitted(system)
    running(system, video_id)
    with_database(system, lambda database: cancel.delete(database, video_id))

    def rows() -> Any:
        return with_database(system, lambda database: database.fetch_all("SELECT id FROM videos"))

    wait_for("the row is gone", lambda: not rows(), 10)
    assert not (system.media / video_id).exists()


def test_shutdown_queues_a_running_job_again_without_costing_a_try(start: Start) -> None:
    system = start([], script={"step_seconds": 0.3}, drain_seconds=0.2)
    video_id = submitted(system)
    running(system, video_id)
    assert system.stop_supervisor() == 0
    video = found(system, video_id)
    assert (video.state, video.attempt, video.tries) == ("queued", 1, 0)
    system.start_supervisor()
    assert final(system, video_id).attempt == 2


def test_shutdown_lets_a_job_that_fits_into_the_drain_time_end(start: Start) -> None:
    system = start([], script={"step_seconds": 0.1}, drain_seconds=20)
    video_id = submitted(system)
    running(system, video_id)
    assert system.stop_supervisor() == 0
    assert found(system, video_id).state == "completed"


def test_jobs_are_made_in_the_order_of_their_arrival(start: Start) -> None:
    system = start([])
    ids = [submitted(system) for _ in range(4)]
    finished = [final(system, video_id).completed_at for video_id in ids]
    assert finished == sorted(finished, key=lambda at: at.timestamp() if at else 0)


def test_two_engines_share_the_queue_and_no_job_runs_twice(start: Start) -> None:
    system = start([], script={"step_seconds": 0.05}, engine_groups=2)
    ids = [submitted(system) for _ in range(6)]
    videos = [final(system, video_id) for video_id in ids]
    assert {video.state for video in videos} == {"completed"}
    assert {video.attempt for video in videos} == {1}
    assert {video.engine_id for video in videos} == {"test-host/0", "test-host/1"}


def test_a_flood_on_standard_error_does_not_stop_the_engine(start: Start) -> None:
    system = start([{"at": "step", "step": 2, "what": "flood", "lines": 50_000}])
    assert final(system, submitted(system)).attempt == 1


def test_an_engine_that_dies_while_idle_is_started_again(start: Start) -> None:
    system = start([{"at": "idle", "what": "die", "signal": 7, "seconds": 0.5}])
    wait_for(
        "it was restarted",
        lambda: system.engine()["restarts"] == 1 and system.engine()["state"] == "ready",
        20,
    )
    assert "SIGBUS" in system.log()
    assert final(system, submitted(system)).state == "completed"


def test_a_second_supervisor_on_the_same_directory_is_refused(start: Start) -> None:
    system = start([])
    first = system.supervisor
    system.start_supervisor()
    second = system.supervisor
    assert second is not None
    assert second.wait(20) == 2
    assert "another supervisor" in system.log()
    system.supervisor = first


def test_a_hung_engine_leaves_its_stacks_in_its_log(start: Start) -> None:
    system = start([{"at": "step", "step": 3, "what": "hang"}])
    final(system, submitted(system))
    log = (system.directory / "var" / "log" / "engine-0.log.1").read_text()
    assert "Thread 0x" in log
    assert "_carry_out" in log, "the function it hung in"


def test_a_progress_write_that_fails_oddly_is_not_the_last_one(start: Start) -> None:
    system = start([], script={"step_seconds": 0.2})
    with psycopg.connect(system.database_url, autocommit=True) as connection:
        connection.execute(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'odd'; END $$"
        )
        connection.execute(
            "CREATE TRIGGER odd BEFORE UPDATE ON videos FOR EACH ROW WHEN (NEW.step BETWEEN 1 AND 3) "
            "EXECUTE FUNCTION refuse()"
        )
    video_id = submitted(system)
    running(system, video_id, 5)
    assert final(system, video_id).state == "completed"
    log = (system.directory / "supervisor.log").read_text()
    assert "reporting progress failed" in log
    assert "attempt ended in an error of ours" not in log
