"""Each fault at each place: the decision, the fate of the job, and the way back to a ready engine."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from faulty import ILLEGAL_ACCESS, Start, final, incident_rows, submitted
from system import wait_for

pytestmark = pytest.mark.slow

FAULTS: dict[str, dict[str, Any]] = {
    "raise": {"what": "raise", "text": ILLEGAL_ACCESS},
    "unknown": {"what": "raise", "text": "something nobody has seen before"},
    "hang": {"what": "hang"},
    "segfault": {"what": "die", "signal": int(signal.SIGSEGV)},
    "killed": {"what": "die", "signal": int(signal.SIGKILL)},
    "exit": {"what": "exit", "code": 3},
    "child": {"what": "child"},
    "deaf": {"what": "ignore_sigterm"},
}
PLACES: dict[str, dict[str, Any]] = {
    "load": {"at": "load"},
    "warm_up": {"at": "warm_up"},
    "step": {"at": "step", "step": 3},
    "decode": {"at": "decode"},
    "idle": {"at": "idle", "seconds": 0.3},
}
#: Faults by which an engine does not end: it goes on, and the job knows nothing of them.
HARMLESS = ("child", "deaf")
#: What cannot happen: an idle worker has no call that could raise, and a hang of one is met by the next job.
IMPOSSIBLE = {("raise", "idle"), ("unknown", "idle"), ("hang", "idle")}
#: Upper bound from the fault to the next proved engine: the deadline of the place, then the start.
SECONDS = {"load": 20 + 15, "warm_up": 5 + 15, "step": 3 + 15, "decode": 3 + 15, "idle": 15}
SIGNATURES = {
    "raise": "cuda_illegal_access",
    "unknown": "unknown",
    "segfault": "worker_segv",
    "killed": "killed_from_outside",
    "exit": "unknown",
}


@pytest.mark.parametrize(
    ("fault", "place"), [(f, p) for f in FAULTS for p in PLACES if (f, p) not in IMPOSSIBLE]
)
def test_engine_recovers_and_the_job_is_made(start: Start, fault: str, place: str) -> None:
    deadlines = {"load": 4}
    system = start(
        [PLACES[place] | FAULTS[fault]], wait=False, script={"warm_up_seconds": 4, "deadlines": deadlines}
    )
    video_id = submitted(system)
    video = final(system, video_id, SECONDS[place] + 20)
    assert video.state == "completed"
    during_job = place in ("step", "decode")
    if fault in HARMLESS:
        assert (video.attempt, incident_rows(system)) == (1, [])
        return
    if place != "idle":  # an idle engine may have made the job before it broke
        assert video.attempt == (2 if during_job else 1)
    rows = wait_for("ready again", lambda: [r for r in incident_rows(system) if r.ready_again_seconds], 30)
    (incident,) = rows
    assert incident.signature == SIGNATURES.get(fault, incident.signature)
    assert incident.record["action"] in ("restart_same", "next_rung")
    assert incident.video_id == (video_id if during_job else None)
    assert 0 < incident.ready_again_seconds < SECONDS[place]
    assert system.engine()["state"] in ("ready", "busy", "degraded")
    print(f"{fault} at {place}: {incident.signature}, ready again after {incident.ready_again_seconds:.1f} s")
