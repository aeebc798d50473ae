"""The supervisor: one a host. It is the only program that knows about processes, and never imports torch."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import procrastinate
import structlog

from framekeeper import metrics
from framekeeper.checkpoint import layout, pictures, tiny
from framekeeper.database.migrate import SchemaError, migrate
from framekeeper.database.pool import UNAVAILABLE, Database
from framekeeper.doctor.examine import examine_host
from framekeeper.doctor.weights.header import unreadable
from framekeeper.engine import gauges, host, leftovers, refusal
from framekeeper.engine.device_lock import DeviceHeld, DeviceLock
from framekeeper.engine.group import DeviceGroup
from framekeeper.engine.namesake import connection_name, namesake
from framekeeper.engine.persist import persist
from framekeeper.engine.port import listening
from framekeeper.engine.serving import Serving
from framekeeper.engine.tidy import keep_tidy
from framekeeper.errors import DatabaseUnavailable, EngineFailed
from framekeeper.jobs import reconcile
from framekeeper.jobs.unserved import Watch
from framekeeper.jobs.wake import TASK
from framekeeper.media.store import MediaStore
from framekeeper.profiles.facts import HostFacts
from framekeeper.profiles.faults import ProfileError
from framekeeper.profiles.launch import Launch, resolve
from framekeeper.profiles.load import VARIABLE, load_profile
from framekeeper.profiles.schema import Profile
from framekeeper.settings import Settings

log = structlog.get_logger()

#: Seconds an abandoned job's worker has to stop before it is killed.
ABANDON_SECONDS = 10.0
#: Seconds between two looks for lost jobs.
RECONCILE_SECONDS = 5.0


class Unusable(Exception):
    """The configuration cannot work; one line a fault."""


def main(settings: Settings) -> int:
    """Run until SIGTERM or SIGINT. Returns 0 after a clean end, 2 for a configuration that cannot work."""
    # Until the event loop takes over: as a container's first process we would not get the signal otherwise.
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, _end_before_start)
    try:
        with _only_one(settings.run_directory):
            try:
                plan = prepare(settings)
            except (Unusable, ProfileError) as error:
                refusal.publish(settings, str(error))
                raise
            _check_port(settings.supervisor_host, settings.supervisor_port)
            locks = _lock_devices(settings, plan.launches)
            if killed := leftovers.kill(leftovers.RUN, str(settings.run_directory)):
                log.warning("ended processes that an earlier run left", pids=killed)
            asyncio.run(_run(settings, plan))
            for lock in locks:
                lock.release()
    except SchemaError as error:
        print(f"FRAMEKEEPER_DATABASE_URL: {error}", file=sys.stderr)  # noqa: T201
        return 2
    except (Unusable, ProfileError) as error:
        print(error, file=sys.stderr)  # noqa: T201  the one thing a person must see
        return 2
    return 0


def _end_before_start(*_: object) -> None:
    raise SystemExit(0)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a supervisor will run: the first launch of every device group, and what they are resolved from."""

    profile: Profile
    facts: HostFacts
    launches: list[Launch]
    python: Path


def prepare(settings: Settings) -> Plan:
    """What will be started, checked as far as possible before anything is. Raises Unusable, ProfileError."""
    if not settings.database_url:
        raise Unusable(
            "FRAMEKEEPER_DATABASE_URL is not set: a supervisor needs PostgreSQL. Set it to a URL such as "
            "postgresql://user@host/framekeeper, or use `framekeeper run`, which brings its own."
        )
    profile = load_profile(settings.profile, settings.profiles, named_by=VARIABLE)
    facts = host.gather(settings, profile.runtime)
    profile = load_profile(settings.profile, settings.profiles, facts, named_by=VARIABLE)
    if settings.model:
        profile = profile.model_copy(update={"model": settings.model})
    groups = settings.engine_groups
    launches = [resolve(profile, facts, group=index, groups=groups) for index in range(groups)]
    for warning in launches[0].warnings:
        log.warning("profile warning", warning=warning)
    python = host.engine_environment(settings, profile.runtime) / "bin" / "python"
    faults: list[str] = []
    if profile.backend != "fault":  # whose model is a script
        model = Path(launches[0].model)
        # The doctor reads every header, too: once is enough.
        found = tiny.missing(model) or layout.faults(model) or ([] if settings.doctor else unreadable(model))
        if contradiction := pictures.contradiction(model, profile.admits.image):
            found = [*found, contradiction]
        faults += [f"model: {fault}" for fault in found]
    if not os.access(python, os.X_OK):
        target = settings.runtimes / profile.runtime
        faults.append(
            f"runtime {profile.runtime}: {python} is not there; install it with "
            f"`python docker/runtimes/install.py {profile.runtime} --into {target}`, "
            "or set FRAMEKEEPER_ENGINE_PYTHON"
        )
    if faults:
        raise Unusable("\n".join(faults))
    _examine(settings)
    return Plan(profile=profile, facts=facts, launches=launches, python=python.absolute())


def _examine(settings: Settings) -> None:
    """The fast doctor. Raises Unusable with the sentence of everything that an engine will not run with."""
    if not settings.doctor:
        log.warning("the doctor is off (FRAMEKEEPER_DOCTOR): nothing of this host was examined")
        return
    examination = examine_host(settings, settings.profile, fast=True)
    for finding in examination.findings:
        if finding.severity == "warn":
            log.warning("doctor", check=finding.check, warning=str(finding))
    if examination.fatal:
        raise Unusable("\n".join(f"doctor: {finding}" for finding in examination.fatal))


@contextlib.contextmanager
def _only_one(run_directory: Path) -> Iterator[None]:
    """Hold the run directory. Raises Unusable when another supervisor has it, or it cannot be made."""
    try:
        run_directory.mkdir(parents=True, exist_ok=True)
        lock = os.open(run_directory / "supervisor.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise Unusable(f"FRAMEKEEPER_VAR: {run_directory} cannot be used ({error.strerror})") from None
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(lock, 20, 0).decode(errors="replace").strip() or "unknown"
            raise Unusable(
                f"another supervisor (pid {holder}) runs in {run_directory}; stop it, or set FRAMEKEEPER_VAR"
            ) from None
        # A full disk must not end the supervisor: the number is for people only.
        with contextlib.suppress(OSError):
            os.ftruncate(lock, 0)
            os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(lock)


def _lock_devices(settings: Settings, launches: Sequence[Launch]) -> list[DeviceLock]:
    """Take every group's devices for this supervisor's life. Raises Unusable when another one has them."""
    locks = []
    for launch in launches:
        # A CPU stands for as many devices as there are engines: only cards are shared by the whole host.
        directory = settings.device_locks if launch.options["device"] != "cpu" else settings.run_directory
        lock = DeviceLock(directory.absolute(), launch.devices, f"{settings.host_id}/{launch.group}")
        try:
            lock.acquire()
        except DeviceHeld as error:
            raise Unusable(f"profile {launch.profile.name}: {error}") from None
        except OSError as error:
            raise Unusable(
                f"FRAMEKEEPER_DEVICE_LOCKS={directory}: cannot be used ({error.strerror}); set a directory "
                "that all engines of this host share and may write to"
            ) from None
        locks.append(lock)
    return locks


def _check_port(address: str, port: int) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError as error:
            raise Unusable(
                f"FRAMEKEEPER_SUPERVISOR_PORT={port}: {address}:{port} cannot be listened on "
                f"({error.strerror}); set another port"
            ) from None


async def _run(settings: Settings, plan: Plan) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stopping.set)
    run_id = uuid4().hex
    size = 4 + 2 * len(plan.launches)
    database = Database(settings.database_url, size=size, name=connection_name(run_id))
    _register_task(database)
    store = MediaStore(settings.media_directory)
    groups = [
        DeviceGroup(
            settings=settings,
            database=database,
            profile=plan.profile,
            facts=plan.facts,
            group=index,
            python=plan.python,
            run_id=run_id,
            store=store,
        )
        for index in range(len(plan.launches))
    ]
    statuses = [group.status for group in groups]
    async with listening(statuses, settings):
        working = asyncio.create_task(_work(settings, database, groups), name="groups")
        replaced = [asyncio.create_task(status.replaced.wait()) for status in statuses]
        stop = asyncio.create_task(stopping.wait())
        await asyncio.wait({working, stop, *replaced}, return_when=asyncio.FIRST_COMPLETED)
        if any(task.done() for task in replaced):
            log.error("another supervisor has taken this host's name", host_id=settings.host_id)
        for task in (stop, *replaced):
            task.cancel()
        await _stop(settings, groups, working)
    await database.close()


async def _work(settings: Settings, database: Database, groups: Sequence[DeviceGroup]) -> None:
    await _open(settings, database)
    if (fault := await persist(lambda: namesake(database, settings))) is not None:
        raise Unusable(fault)
    for group in groups:
        await group.status.register()
    upkeep = [
        asyncio.create_task(_reconcile(settings, database, groups), name="reconcile"),
        asyncio.create_task(keep_tidy(settings, database), name="tidy"),
        asyncio.create_task(gauges.keep_census(settings, database, groups), name="census"),
        asyncio.create_task(gauges.keep_memory(settings, groups), name="memory"),
    ]
    upkeep += [
        asyncio.create_task(group.status.publish_changes(settings.stale_seconds / 6)) for group in groups
    ]
    try:
        await asyncio.gather(*(group.run() for group in groups))
        for group in groups:
            with contextlib.suppress(DatabaseUnavailable):
                await group.status.publish()
    finally:
        for task in upkeep:
            task.cancel()
        await asyncio.gather(*upkeep, return_exceptions=True)


async def _open(settings: Settings, database: Database) -> None:
    """Migrate and connect, for as long as it takes: a database may come up after us."""
    delay = 0.5
    while True:
        try:
            await asyncio.to_thread(migrate, settings.database_url)
            break
        except UNAVAILABLE as error:
            log.warning(
                "waiting for the database", error=str(error).strip().splitlines()[0], next_try_in=delay
            )
            await asyncio.sleep(delay)
            delay = min(10.0, delay * 2)
    await database.open()


async def _stop(settings: Settings, groups: Sequence[DeviceGroup], working: asyncio.Task[None]) -> None:
    """Let running jobs end, then queue them again, then kill; each with a bound."""
    log.info("stopping", drain_seconds=settings.drain_seconds)
    for group in groups:
        group.stop()
    for act, seconds in (
        (lambda _: None, settings.drain_seconds),
        (DeviceGroup.abandon, ABANDON_SECONDS),
        (DeviceGroup.kill, ABANDON_SECONDS),
    ):
        for group in groups:
            act(group)
        await asyncio.wait({working}, timeout=seconds)
        if working.done():
            break
    if not working.done():  # the database is away: the next run finds the rows as they are
        working.cancel()
    await asyncio.gather(working, return_exceptions=True)
    if working.done() and not working.cancelled() and working.exception() is not None:
        raise working.exception()  # type: ignore[misc]  # it is not None


async def _reconcile(settings: Settings, database: Database, groups: Sequence[DeviceGroup]) -> None:
    """Look for lost jobs and forgotten wake-ups, for ever.

    After an outage of the database every heartbeat is old. Others get as long to beat again as they have to
    stay silent before their jobs are taken; also after a pause of ours, which may have been theirs.
    """
    store = MediaStore(settings.media_directory)
    watch = Watch(stale_seconds=settings.stale_seconds, allowed=settings.unserved_seconds)
    reachable_since = time.monotonic()
    while True:
        patience = settings.stale_seconds
        if time.monotonic() - reachable_since < settings.stale_seconds:
            patience = 10 * 365 * 86400.0
        try:
            lost = await reconcile.settle_lost(
                database,
                max_attempts=settings.max_attempts,
                stale_seconds=patience,
                run_id=groups[0].status.run_id,
            )
            lost += await reconcile.settle_unknown(
                database,
                run_id=groups[0].status.run_id,
                working=set().union(*(group.working for group in groups)),
                max_attempts=settings.max_attempts,
            )
            for video in lost:
                log.warning(
                    "lost job settled",
                    video_id=video.id,
                    request_id=video.request_id,
                    state=video.state.value,
                )
                if video.state.final:
                    metrics.count_finished(video.state.value, video.error_code)
                # What its engine had written so far is nobody's any more.
                await asyncio.to_thread(store.remove_attempt, video.id, video.attempt)
            for video in [
                *await watch.fail(database),
                *await reconcile.fail_unadmitted(database, stale_seconds=settings.stale_seconds),
                *await reconcile.fail_overdue(database),
            ]:
                log.warning("queued job failed", video_id=video.id, reason=video.error_code)
                metrics.count_finished(video.state.value, video.error_code)
            if woken := await reconcile.wake_forgotten(database):
                log.warning("queued jobs without a wake-up were given one", jobs=woken)
            working = set().union(*(group.working for group in groups))
            if dropped := await reconcile.drop_finished(database, working=working):
                log.warning("wake-ups held for finished jobs removed", wake_ups=dropped)
        except (DatabaseUnavailable, procrastinate.exceptions.ConnectorException):
            reachable_since = time.monotonic()
        except Exception:  # this look must not be the last one
            log.exception("looking for lost jobs failed")
        begun = time.clock_gettime(time.CLOCK_BOOTTIME)  # which a machine's sleep counts in
        await asyncio.sleep(RECONCILE_SECONDS)
        if time.clock_gettime(time.CLOCK_BOOTTIME) - begun > 2 * RECONCILE_SECONDS:
            reachable_since = time.monotonic()


def _register_task(database: Database) -> None:
    @database.queue.task(  # type: ignore[untyped-decorator]  # procrastinate is not followed, see pyproject
        name=TASK,
        pass_context=True,
        retry=procrastinate.RetryStrategy(wait=1, retry_exceptions={EngineFailed, DatabaseUnavailable}),
    )
    async def generate(context: procrastinate.JobContext, video_id: str) -> None:
        serving: Serving = context.additional_context["serving"]
        await serving.make(video_id)
