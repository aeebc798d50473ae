"""Trying one step: through a worker as a supervisor would, directly, or by reading the weights."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import msgspec

from framekeeper.doctor.finding import Finding
from framekeeper.doctor.triage import process
from framekeeper.doctor.triage.outcome import LOADING, Outcome, failed, of_direct
from framekeeper.doctor.triage.plan import Step
from framekeeper.doctor.weights.check import check_headers, check_values
from framekeeper.engine import directories, leftovers, protocol
from framekeeper.engine.bring_up import StartFailed, bring_up, warm_up_request
from framekeeper.engine.end import End
from framekeeper.engine.inquest import Inquest
from framekeeper.engine.link import Link
from framekeeper.engine.process import WorkerProcess
from framekeeper.profiles.launch import Launch

#: What a worker that passed gets to release its devices, and one that hangs to write its stacks.
GRACE_SECONDS = 10.0


async def attempt(step: Step, python: Path, work: Path) -> Outcome:
    """Try a step; its log and files lie in `work`. Raises OSError when the engine's Python cannot start."""
    assert step.launch is not None
    if step.how == "weights":
        return await asyncio.to_thread(_weights, step, Path(step.launch.model))
    log = work / f"{step.name}.log"
    directories.make(step.launch)
    try:
        if step.how == "direct":
            return await _direct(step, step.launch, python, work, log)
        return await _through_worker(step, step.launch, python, work, log)
    finally:
        await asyncio.to_thread(directories.remove_temporary, step.launch)


def _environment(launch: Launch, work: Path) -> dict[str, str]:
    return launch.environment | {leftovers.RUN: str(work), "FRAMEKEEPER_ENGINE": "triage"}


async def _through_worker(step: Step, launch: Launch, python: Path, work: Path, log: Path) -> Outcome:
    began = time.monotonic()
    worker = await WorkerProcess.start(python, _environment(launch, work), log)
    link = Link(worker)
    inquest = Inquest(worker, link)
    pump = asyncio.create_task(link.pump(), name="triage messages")
    try:
        await bring_up(link, launch, work / f"{step.name}-video", lambda _: None)
        seconds = time.monotonic() - began
        link.send(protocol.Shutdown())
        await asyncio.wait({asyncio.create_task(worker.wait())}, timeout=GRACE_SECONDS)
        return Outcome(step=step, state="passed", seconds=seconds, log=log)
    except StartFailed as error:
        seconds = time.monotonic() - began
        link.condemn(str(error), hung=error.hung)
        await asyncio.wait({asyncio.create_task(worker.wait())}, timeout=GRACE_SECONDS)
        worker.kill(str(error))
        warming = error.phase not in LOADING
        late: Any = ("warm_up" if warming else "load") if error.hung else None
        diagnosis = await inquest.look(End(phase=error.phase, deadline=late, failure=error.failure))
        return failed(step, seconds, error.phase, diagnosis, log)
    finally:
        worker.kill("triage is done with it")
        await pump


async def _direct(step: Step, launch: Launch, python: Path, work: Path, log: Path) -> Outcome:
    job, result = work / f"{step.name}.json", work / f"{step.name}.result.json"
    result.unlink(missing_ok=True)
    request = warm_up_request(launch, work / f"{step.name}-video")
    content = {
        "backend": launch.backend,
        "model": launch.model,
        "options": launch.options,
        "experts": launch.profile.experts,
        "picture": launch.profile.admits.image != "none",
        "request": msgspec.to_builtins(request, str_keys=True),
    }
    content["request"].pop("type", None)  # the tag of a message, which this is not here
    job.write_text(json.dumps(content), encoding="utf-8")
    profile = launch.profile
    seconds = profile.deadlines.load_seconds + profile.warm_up.deadline_seconds
    command: list[str | Path] = [python, "-m", "framekeeper.doctor.triage.direct", job, result]
    ended = await process.run(command, _environment(launch, work), log, seconds)
    return of_direct(step, ended, log, result)


def _weights(step: Step, directory: Path) -> Outcome:
    """Headers first, then every value: by now nothing else is left to blame."""
    began = time.monotonic()
    checkpoint = check_headers(directory)
    fatal = _first_fatal(list(checkpoint.findings)) or _first_fatal(check_values(checkpoint))
    seconds = time.monotonic() - began
    if fatal is None:
        return Outcome(step=step, state="passed", seconds=seconds)
    return Outcome(
        step=step,
        state="failed",
        seconds=seconds,
        signature=fatal.check,
        cause=f"{fatal.seen}: {fatal.why}",
        line=fatal.seen,
    )


def _first_fatal(findings: list[Finding]) -> Finding | None:
    return next((finding for finding in findings if finding.severity == "fatal"), None)
