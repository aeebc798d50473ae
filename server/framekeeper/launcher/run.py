"""The order in which everything starts and ends, and the loop that keeps it running."""

from __future__ import annotations

import logging
import os
import select
import shlex
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType

import psycopg

from framekeeper.database.embedded import EmbeddedError, embedded_postgres, revive
from framekeeper.database.migrate import SchemaError, migrate
from framekeeper.gateway import metrics_directory
from framekeeper.gateway.reach import open_to_all
from framekeeper.launcher import checkpoint, probe
from framekeeper.launcher.child import Child
from framekeeper.launcher.display import Display, DisplayHandler
from framekeeper.launcher.preflight import (
    CannotRun,
    base_url,
    check_media,
    check_ports,
    check_space,
    only_one,
)
from framekeeper.profiles.faults import ProfileError
from framekeeper.profiles.load import VARIABLE, load_profile
from framekeeper.profiles.schema import Profile
from framekeeper.settings import Settings

TICK_SECONDS = 0.25
#: Between two questions to a system that is ready.
IDLE_SECONDS = 2.0
#: For a database of one's own that does not answer yet.
DATABASE_SECONDS = 60.0
#: gunicorn gives requests 15 s.
GATEWAY_STOP_SECONDS = 20.0
#: Beyond `drain_seconds`: the supervisor gives a worker this long to stop, and again to be killed.
SUPERVISOR_STOP_SECONDS = 30.0
#: A program that ends so often before all was ready once will not come up by itself.
HOPELESS = 5
#: Exit status of our programs for a configuration that cannot work.
BAD_CONFIGURATION = 2


class GaveUp(Exception):
    """A program does not start; the message is for a person. Exit status 1."""


class _Stopped(Exception):
    """Somebody asked for the end while something was starting."""


class Signals:
    """Counts requests to end: the first begins a clean end, the second hurries it."""

    def __init__(self) -> None:
        self.count = 0
        # Not threading.Event: a handler that sets it may interrupt its own thread inside it, and hang.
        self._wake, self._written = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Receive SIGINT, SIGTERM and the terminal's SIGHUP while the block runs."""
        names = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        before = {name: signal.signal(name, self._receive) for name in names}
        signal.set_wakeup_fd(self._written, warn_on_full_buffer=False)
        try:
            yield
        finally:
            # An impatient third Ctrl-C must not interrupt the last moments of a clean end.
            for name, handler in before.items():
                signal.signal(name, signal.SIG_IGN if self.stopping() else handler)
            signal.set_wakeup_fd(-1)

    def _receive(self, _number: int, _frame: FrameType | None) -> None:
        self.count += 1

    def stopping(self) -> bool:
        """Whether the end was asked for."""
        return self.count > 0

    def hurried(self) -> bool:
        """Whether it was asked for again."""
        return self.count > 1

    def sleep(self, seconds: float) -> None:
        """Wait, until the end is asked for at most."""
        select.select([self._wake], [], [], seconds)


def run(settings: Settings, *, programs: Mapping[str, list[str]] | None = None) -> int:
    """Run everything until a signal. Returns 0 after a clean end, 2 if it cannot run, else 1.

    `programs` replaces the commands of `supervisor` and `gateway` in tests.
    """
    signals = Signals()
    ours = [sys.executable, "-m", "framekeeper"]
    programs = programs or {name: [*ours, name] for name in ("supervisor", "gateway")}
    try:
        with signals.installed(), Display() as display, _warnings_to(display), only_one(settings):
            check_ports(settings)
            check_media(settings)
            check_space(settings)
            with ExitStack() as stack:
                _Launch(settings, programs, display, signals, stack).run()
        display.say("stopped")
    except _Stopped:
        return 0
    except (CannotRun, ProfileError, EmbeddedError, GaveUp, checkpoint.CheckpointFailed) as error:
        if signals.stopping():  # Ctrl-C also ended what was being waited for
            return 0
        sys.stderr.write(f"{error}\n")
        return 2 if isinstance(error, CannotRun | ProfileError) else 1
    return 0


@contextmanager
def _warnings_to(display: Display) -> Iterator[None]:
    handler = DisplayHandler(display)
    logger = logging.getLogger("framekeeper")
    propagate, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagate


class _Launch:
    """One run. The exit stack holds what has to be stopped, in order."""

    def __init__(
        self,
        settings: Settings,
        programs: Mapping[str, list[str]],
        display: Display,
        signals: Signals,
        stack: ExitStack,
    ) -> None:
        self.settings = settings
        self.programs = programs
        self.display = display
        self.signals = signals
        self.stack = stack
        self.logs = settings.var.absolute() / "log"
        self.postgres = settings.var.absolute() / "postgres"
        self.children: list[Child] = []
        self.ready = False

    def run(self) -> None:
        """Start all, then keep it running until a signal."""
        profile = load_profile(self.settings.profile, self.settings.profiles, named_by=VARIABLE)
        python = checkpoint.engine_python(self.settings, profile.runtime)
        url = self._database()
        self._schema(url)
        self._checkpoint(python, profile)
        self._start_children(url)
        self.display.begin("engine")
        self._keep_running(profile)

    def _database(self) -> str:
        if self.settings.database_url:
            return self.settings.database_url
        self.display.begin("database")
        url = self.stack.enter_context(embedded_postgres(self.postgres, log_file=self.logs / "postgres.log"))
        self.display.end("embedded PostgreSQL answers")
        self._leave_if_stopping()
        return url

    def _schema(self, url: str) -> None:
        self.display.begin("schema")
        deadline = time.monotonic() + DATABASE_SECONDS
        while True:
            try:
                migrate(url)
                break
            except psycopg.OperationalError as error:
                reason = str(error).strip().splitlines()[-1]
                if time.monotonic() > deadline:
                    raise GaveUp(
                        f"FRAMEKEEPER_DATABASE_URL: no answer in {DATABASE_SECONDS:.0f} s: {reason}"
                    ) from None
                self.display.detail(f"waiting for the database: {reason}")
                self.signals.sleep(1.0)
                self._leave_if_stopping()
            except SchemaError as error:
                name = "FRAMEKEEPER_DATABASE_URL" if self.settings.database_url else f"{self.postgres}"
                raise CannotRun(f"{name}: {error}") from None
            except psycopg.ProgrammingError as error:
                raise CannotRun(f"FRAMEKEEPER_DATABASE_URL is not a PostgreSQL URL: {error}") from None
        self.display.end("up to date")
        self._leave_if_stopping()

    def _checkpoint(self, python: Path, profile: Profile) -> None:
        model = Path(self.settings.model or profile.model).absolute()
        if not checkpoint.is_wanted(model):
            return
        self.display.begin("checkpoint")
        self.display.detail("making the small Wan2.2 model")
        checkpoint.make(python, model, self.signals.stopping)
        self._leave_if_stopping()
        self.display.end(str(model))

    def _start_children(self, url: str) -> None:
        environment = {**os.environ, "FRAMEKEEPER_DATABASE_URL": url}
        if self.settings.log_format == "auto":
            environment["FRAMEKEEPER_LOG_FORMAT"] = "human"  # these files are read by a person
        limits = {
            "supervisor": self.settings.drain_seconds + SUPERVISOR_STOP_SECONDS,
            "gateway": GATEWAY_STOP_SECONDS,
        }
        self.stack.callback(metrics_directory.remove, self.settings)  # a gateway that was killed leaves them
        # The stack ends them in the opposite order: the gateway first, so that nothing new is accepted.
        for name, seconds in limits.items():
            child = Child(name, self.programs[name], environment, self.logs / f"{name}.log")
            child.start()
            self.children.append(child)
            self.stack.callback(self._stop, child, seconds)

    def _stop(self, child: Child, seconds: float) -> None:
        if child.pid is None:
            return
        hint = "; Ctrl-C again ends it at once" if child.name == "supervisor" else ""
        self.display.say(f"stopping the {child.name} (at most {seconds:.0f} s{hint})")
        if not child.stop(seconds, self.signals.hurried):
            self.display.say(f"the {child.name} was killed")

    def _keep_running(self, profile: Profile) -> None:
        status = ""
        while not self.signals.stopping():
            for child in self.children:
                self._look_after(child)
            if not self.settings.database_url:
                self._look_after_database()
            now = probe.startup(self.settings)
            if self.ready:
                if now.status != status:
                    self.display.say(f"engine: {now.sentence()}")
            else:
                self.display.detail(now.sentence())
                if now.status == "ready" and probe.gateway_is_live(self.settings):
                    self.display.end("ready: it has made and checked a video")
                    self.display.settle()
                    self.display.say(_invitation(self.settings, profile))
                    if warning := open_to_all(self.settings):
                        self.display.say(f"warning: {warning}")
                    self.ready = True
                elif now.status == "failed" and status != "failed":
                    self.display.say(f"the engine failed; see {self.logs / 'supervisor.log'}")
            status = now.status
            self.signals.sleep(IDLE_SECONDS if self.ready else TICK_SECONDS)
        self.display.settle()

    def _look_after(self, child: Child) -> None:
        status = child.ended()
        if status is not None:
            ending = f"exit status {status}" if status >= 0 else signal.Signals(-status).name
            if status == BAD_CONFIGURATION and not self.ready:
                raise CannotRun(f"the {child.name} cannot run:\n{child.tail()}")
            self.display.say(f"the {child.name} ended ({ending}); its last lines in {child.log_file}:")
            self.display.say("\n".join(f"  {line}" for line in child.tail().splitlines()))
            if not self.ready and child.failures >= HOPELESS:
                raise GaveUp(f"the {child.name} ended {child.failures} times without getting ready")
            self.display.say(f"the {child.name} is started again in {child.backoff:.1f} s")
        elif child.restart_if_due():
            self.display.say(f"the {child.name} was started again")

    def _look_after_database(self) -> None:
        try:
            if revive(self.postgres, self.logs / "postgres.log"):
                self.display.say("PostgreSQL had ended and was started again")
        except EmbeddedError as error:
            self.display.say(f"{error}; tried again in {IDLE_SECONDS:.0f} s")
            self.signals.sleep(IDLE_SECONDS)

    def _leave_if_stopping(self) -> None:
        if self.signals.stopping():
            raise _Stopped


def _invitation(settings: Settings, profile: Profile) -> str:
    """What to do with a system that is ready: lines to paste into a shell."""
    url = base_url(settings)
    prompt = "a cat walks on the grass"
    body = shlex.quote(f'{{"model": "{profile.serves}", "prompt": "{prompt}"}}')
    sent, with_what = f"-H 'Content-Type: application/json' \\\n    -d {body}", ""
    if profile.admits.image == "required":
        model = shlex.quote(f"model={profile.serves}")
        sent = f"-F {model} -F prompt='{prompt}' \\\n    -F input_reference=@picture.jpg"
        with_what = " from a picture of yours, here picture.jpg"
    return f"""
Framekeeper is ready: {url}   (web API: {url}/docs, engine: {profile.serves})
Make a video{with_what}, wait for it, download it:

  id=$(curl -s {url}/v1/videos {sent} | grep -o 'video_[0-9a-zA-Z]*' | head -1)
  until curl -s {url}/v1/videos/$id | grep -E '"status": ?"(completed|failed|cancelled)"'; do sleep 1; done
  curl -s -o $id.mp4 {url}/v1/videos/$id/content

Videos lie in {settings.media_directory}, logs in {settings.var.absolute() / "log"}. Ctrl-C ends everything.
"""
