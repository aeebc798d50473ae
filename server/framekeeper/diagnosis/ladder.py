"""What to do after a failure: one pure function from the diagnosis and what happened before to a decision.

The usual way down: change the one thing that helps where the profile has a rung for it; else try the next
rung; else start the same again, later each time; and stop, saying so, when that leads nowhere. Only an
operator or a quiet time leads up again (`way_up`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from framekeeper.diagnosis.classify import Diagnosis
from framekeeper.diagnosis.limit import Limit, Shape, smaller
from framekeeper.diagnosis.rungs import next_rung
from framekeeper.profiles.fallbacks import at_rung, rung_name
from framekeeper.profiles.schema import Profile, parse_size

DecisionAction = Literal["serve_on", "restart_same", "next_rung", "reduce_shape", "clear_caches", "stop"]
Fix = Literal["host", "weights", "configuration"]
JobFate = Literal["none", "retry", "fail", "quarantine"]


@dataclass(frozen=True, kw_only=True)
class Policy:
    """The numbers of the ladder.

    `loop_ends` ends on one rung are a crash loop: of an engine that served, within `window_seconds`; of
    starts that never got ready, when no more than `start_gap_seconds` lie between two. `same_restarts`:
    so often the same failure is met by starting the same again. `quiet_seconds`: None leaves the way up to
    an operator.
    """

    backoff_seconds: tuple[float, ...] = (0.0, 1.0, 5.0, 15.0, 30.0)
    window_seconds: float = 1800.0
    start_gap_seconds: float = 3600.0
    loop_ends: int = 5
    same_restarts: int = 2
    quarantine_ends: int = 2
    limit_seconds: float = 3600.0
    quiet_seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class Past:
    """An earlier unplanned end of this engine.

    `rung` is where it ran, `after` where it was started again, `served` whether it had got ready.
    """

    time: float
    signature: str
    rung: int
    after: int
    action: DecisionAction
    served: bool = True
    client_error: bool = False


@dataclass(frozen=True, kw_only=True)
class History:
    """Earlier ends of this engine, oldest first; and how many engines, of any host, this job has ended."""

    past: tuple[Past, ...] = ()
    job_ends: int = 0


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What happens next. `rung` is the one of the next start; `fix` is set when somebody has to do something.

    `restart` is False only where the living process goes on. `counts` says whether the job's try counts.
    """

    action: DecisionAction
    restart: bool
    rung: int
    rung_name: str
    delay_seconds: float
    job: JobFate
    counts: bool
    reason: str
    fix: Fix | None = None
    limit: Limit | None = None


@dataclass(frozen=True, kw_only=True)
class Situation:
    """What a decision is made from. `profile` is that of rung 0; `shape` is the present job's."""

    diagnosis: Diagnosis
    history: History
    profile: Profile
    rung: int
    now: float
    job: bool = False
    shape: Shape | None = None
    policy: Policy = Policy()

    @property
    def recent(self) -> tuple[Past, ...]:
        """Ends on this rung that still count, the newest first: a new rung starts with a clean slate."""
        policy = self.policy
        counted: list[Past] = []
        newer = self.now
        for each in reversed(self.history.past):
            if each.client_error or each.action == "serve_on":
                continue
            in_window = each.time >= self.now - policy.window_seconds
            in_a_row = not each.served and newer - each.time <= policy.start_gap_seconds
            if each.rung != self.rung or each.after != self.rung or not (in_window or in_a_row):
                break
            counted.append(each)
            newer = each.time
        return tuple(counted)

    @property
    def same(self) -> int:
        """How often this very signature ended the engine on this rung within the window."""
        return sum(each.signature == self.diagnosis.signature for each in self.recent)


def decide(situation: Situation) -> Decision:
    """What to do after this failure. Pure: the same situation always gives the same decision."""
    diagnosis = situation.diagnosis
    if diagnosis.usable and (diagnosis.client_error or diagnosis.action == "none"):
        return _decision(situation, "serve_on", f"{diagnosis.cause} The engine is not at fault.")
    if len(situation.recent) + 1 >= situation.policy.loop_ends and not diagnosis.client_error:
        return _loop(situation)
    match diagnosis.action:
        case "stop_fix_host" | "stop_fix_weights" | "stop_fix_configuration":
            return _stop_or_wait(situation)
        case "next_rung":
            return _step_down(situation)
        case "reduce_shape":
            return _reduce(situation)
        case "clear_caches" if situation.same == 0:
            return _decision(situation, "clear_caches", f"{diagnosis.cause} The caches are emptied.")
        case "clear_caches":
            return _step_down(situation)
        case "restart_same" if situation.same >= max(diagnosis.patience, situation.policy.same_restarts):
            return _step_down(situation)
        case _:
            return _decision(situation, "restart_same", f"{diagnosis.cause} The engine is started again.")


def way_up(history: History, rung: int, *, now: float, policy: Policy) -> int:
    """The rung to try now: the one before the last step down, after a quiet time; else `rung`.

    Every step down from that same rung doubles the quiet time, up to eight times it.
    """
    steps = [each for each in history.past if each.rung < each.after]
    target = next((each.rung for each in reversed(steps) if each.after == rung), rung - 1)
    if rung == 0 or target < 0:
        return 0
    if policy.quiet_seconds is None:
        return rung
    failed = sum(each.rung == target for each in steps)
    wait = policy.quiet_seconds * min(8, 2 ** max(0, failed - 1))
    last = history.past[-1].time if history.past else now
    return target if now - last >= wait else rung


def _stop_or_wait(situation: Situation) -> Decision:
    diagnosis = situation.diagnosis
    if situation.same < diagnosis.patience:
        reason = f"{diagnosis.cause} It may pass, so the engine is started again."
        return _decision(situation, "restart_same", reason)
    fixes: dict[str, Fix] = {
        "stop_fix_host": "host",
        "stop_fix_weights": "weights",
        "stop_fix_configuration": "configuration",
    }
    fix = fixes[diagnosis.action]
    return _decision(situation, "stop", f"{diagnosis.cause} Starting again does not help.", fix=fix)


def _step_down(situation: Situation) -> Decision:
    lower = next_rung(situation.profile, situation.rung, situation.diagnosis.rungs)
    if lower is None:
        reason = (
            f"{situation.diagnosis.cause} The profile has no further fallback; the same is started again."
        )
        return _decision(situation, "restart_same", reason)
    name = rung_name(situation.profile, lower)
    reason = f"{situation.diagnosis.cause} The engine goes on with fallback {name}."
    return _decision(situation, "next_rung", reason, rung=lower)


def _loop(situation: Situation) -> Decision:
    """So many ends on one rung are a crash loop: lower if there is a lower rung, else it is over."""
    diagnosis = situation.diagnosis
    if diagnosis.action.startswith("stop_"):
        return _stop_or_wait(situation)
    if situation.rung < len(situation.profile.fallbacks):
        return _step_down(situation)
    ends = len(situation.recent) + 1
    reason = f"The engine ended {ends} times in a row, the last time so: {diagnosis.cause}"
    helpless = diagnosis.action in ("next_rung", "reduce_shape")
    return _decision(situation, "stop", reason, fix="configuration" if helpless else None)


def _reduce(situation: Situation) -> Decision:
    """Refuse what did not fit. Where nothing smaller is worth admitting, another rung has to help."""
    below = situation.rung < len(situation.profile.fallbacks)
    if situation.shape is None and below:  # no job's shape: it was the warm-up that did not fit
        return _step_down(situation)
    present = at_rung(situation.profile, situation.rung)
    width, height = parse_size(present.admits.size)
    largest = Shape(width=width, height=height, num_frames=present.admits.num_frames)
    too_large = situation.shape or largest
    shape = smaller(too_large)
    if shape is None:
        return _step_down(situation)
    until = situation.now + situation.policy.limit_seconds
    limit = Limit(shape=shape, until=until, reason=f"{too_large} did not fit into the card's memory.")
    reason = (
        f"{situation.diagnosis.cause} At most {shape} are admitted for {situation.policy.limit_seconds:g} s."
    )
    return _decision(situation, "reduce_shape", reason, limit=limit)


def _decision(
    situation: Situation,
    action: DecisionAction,
    reason: str,
    *,
    rung: int | None = None,
    fix: Fix | None = None,
    limit: Limit | None = None,
) -> Decision:
    diagnosis = situation.diagnosis
    chosen = situation.rung if rung is None else rung
    # A poisoned process never serves again, and neither does one that has not proved that it can.
    restart = action != "serve_on" and not (action == "reduce_shape" and diagnosis.usable)
    backoff = situation.policy.backoff_seconds
    delay = backoff[min(len(situation.recent), len(backoff) - 1)] if restart else 0.0
    if action in ("next_rung", "stop"):
        delay = 0.0  # something changed, or nothing is started
    fate = _job_fate(situation, action)
    return Decision(
        action=action,
        restart=restart and action != "stop",
        rung=chosen,
        rung_name=rung_name(situation.profile, chosen),
        delay_seconds=delay,
        job=fate,
        counts=_blames_job(diagnosis) or diagnosis.client_error,
        reason=reason,
        fix=fix,
        limit=limit,
    )


def _blames_job(diagnosis: Diagnosis) -> bool:
    """Whether this end counts against the job: not when host, weights, configuration or caches failed."""
    excused = diagnosis.action.startswith("stop_") or diagnosis.action in ("clear_caches", "none")
    return not excused and not diagnosis.client_error


def _job_fate(situation: Situation, action: DecisionAction) -> JobFate:
    if not situation.job:
        return "none"
    diagnosis = situation.diagnosis
    if diagnosis.client_error or not diagnosis.retry:
        return "fail"
    ends = situation.history.job_ends + 1
    if action != "serve_on" and _blames_job(diagnosis) and ends >= situation.policy.quarantine_ends:
        return "quarantine"
    return "retry"
