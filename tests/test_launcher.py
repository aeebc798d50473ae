import fcntl
import http.client
import os
import pty
import signal
import socket
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import psutil
import pytest

PROJECT = Path(__file__).parents[1]
STUB = Path(__file__).with_name("stub_program.py")
START_SECONDS = 60

DRIVER = """
import json, sys
from framekeeper.launcher.run import run
from framekeeper.settings import load
sys.exit(run(load(), programs=json.loads(sys.argv[1])))
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Site:
    """A place to run in: its own `var`, its own ports."""

    def __init__(self, home: Path) -> None:
        self.var = home / "var"
        self.port, self.supervisor_port = free_port(), free_port()
        (home / "model").mkdir()
        self.environment = {
            name: value for name, value in os.environ.items() if "FRAMEKEEPER" not in name
        } | {
            "FRAMEKEEPER_VAR": str(self.var),
            "FRAMEKEEPER_PORT": str(self.port),
            "FRAMEKEEPER_SUPERVISOR_PORT": str(self.supervisor_port),
            "FRAMEKEEPER_PROFILES": str(PROJECT / "configs/profiles"),
            "FRAMEKEEPER_MODEL": str(home / "model"),
            "FRAMEKEEPER_ENGINE_PYTHON": sys.executable,
            "FRAMEKEEPER_DRAIN_SECONDS": "1",
        }
        self.started: list[subprocess.Popen[str]] = []

    def programs(self, supervisor: str = "", gateway: str | None = None) -> str:
        """Commands: a stub supervisor, and the real gateway unless words for a stub are given."""
        stub = f'["{sys.executable}", "{STUB}"'
        words = "".join(f', "{word}"' for word in supervisor.split())
        real = f'["{sys.executable}", "-m", "framekeeper", "gateway"]'
        if gateway is not None:
            real = (
                f'{stub}, "gateway", "{self.port}"' + "".join(f', "{word}"' for word in gateway.split()) + "]"
            )
        return f'{{"supervisor": {stub}, "supervisor", "{self.supervisor_port}"{words}], "gateway": {real}}}'

    def start(self, programs: str, **environment: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", DRIVER, programs],
            env=self.environment | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=PROJECT,
        )
        self.started.append(process)
        return process

    def processes(self) -> list[psutil.Process]:
        """All that works for this site, whoever its parent is."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                inherited = process.environ().get("FRAMEKEEPER_VAR") == str(self.var)
                if inherited or str(self.var / "postgres") in process.cmdline():
                    found.append(process)
        return found

    def shared_memory(self) -> set[Path]:
        """Everything in shared memory that its processes have mapped or open, and its gateway's metrics.

        Other systems on the machine have some of their own, which come and go.
        """
        used = {path.resolve() for path in self.var.rglob("prometheus-*")}
        for process in self.processes():
            for kind in ("map_files", "fd"):
                with suppress(OSError):
                    used |= {path.readlink() for path in Path(f"/proc/{process.pid}/{kind}").iterdir()}
        return {path for path in used if path.is_relative_to("/dev/shm") and path.exists()}

    def is_clean(self) -> bool:
        """No process, no socket, no port, no shared memory."""
        sockets = [path for path in self.var.rglob("*") if path.is_socket()]
        ports = [port for port in (self.port, self.supervisor_port) if _listens(port)]
        return not self.processes() and not sockets and not ports

    def end(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.kill()
                process.wait()
        for left in self.processes():
            with suppress(psutil.NoSuchProcess):
                left.kill()


@pytest.fixture
def site(open_directory: Path) -> Iterator[Site]:
    made = Site(open_directory)
    yield made
    made.end()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def output_until(process: subprocess.Popen[str], words: str) -> str:
    """What it prints up to the line with `words`. pytest's own timeout bounds the wait."""
    assert process.stdout is not None
    seen = ""
    for line in process.stdout:
        seen += line
        if words in line:
            return seen
    raise AssertionError(f"{words!r} never came; it printed:\n{seen}")


def get(port: int, path: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    finally:
        connection.close()


def wait_for(condition: object, seconds: float = 20) -> None:
    assert callable(condition)
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.parametrize("name", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_it_starts_tells_what_to_do_and_leaves_nothing_when_it_ends(site: Site, name: signal.Signals) -> None:
    launcher = site.start(site.programs("family"))
    text = output_until(launcher, "Ctrl-C ends everything")
    assert f"http://127.0.0.1:{site.port}" in text
    assert "curl -s" in text
    assert f"Videos lie in {site.var / 'media'}" in text
    assert get(site.port, "/health/live") == 200
    assert len(site.processes()) >= 6
    shared_memory = site.shared_memory()
    assert shared_memory, "the gateway's metrics at least"
    launcher.send_signal(name)
    rest, _ = launcher.communicate(timeout=60)
    assert launcher.returncode == 0, rest
    assert rest.index("stopping the gateway") < rest.index("stopping the supervisor") < rest.index("stopped")
    assert "Traceback" not in rest
    assert site.is_clean()
    assert not [path for path in shared_memory if path.exists()]


@pytest.mark.slow
def test_a_program_that_does_not_end_is_killed_in_bounded_time(site: Site) -> None:
    launcher = site.start(site.programs("stubborn family", "stubborn"))
    output_until(launcher, "Ctrl-C ends everything")
    launcher.send_signal(signal.SIGINT)
    output_until(launcher, "stopping the gateway")
    launcher.send_signal(signal.SIGINT)  # the second one hurries it
    rest, _ = launcher.communicate(timeout=30)
    assert launcher.returncode == 0
    assert "the gateway was killed" in rest
    assert "the supervisor was killed" in rest
    assert site.is_clean()


@pytest.mark.slow
def test_a_gateway_that_had_to_be_killed_leaves_no_metrics_in_memory(site: Site) -> None:
    launcher = site.start(site.programs())
    output_until(launcher, "Ctrl-C ends everything")
    (link,) = (site.var / "run").glob("prometheus-*")
    directory = link.readlink()
    assert directory.is_dir()
    (master,) = [
        child for child in psutil.Process(launcher.pid).children() if "gunicorn" in " ".join(child.cmdline())
    ]
    master.suspend()
    launcher.send_signal(signal.SIGINT)
    output_until(launcher, "stopping the gateway")
    launcher.send_signal(signal.SIGINT)
    rest, _ = launcher.communicate(timeout=30)
    assert "the gateway was killed" in rest
    assert not directory.exists()
    assert not link.is_symlink()


@pytest.mark.slow
def test_in_a_hurry_too_a_grandchild_gets_to_clean_up(site: Site) -> None:
    launcher = site.start(site.programs("stubborn tidy"))
    output_until(launcher, "Ctrl-C ends everything")
    assert (site.var / "unfinished").exists()
    launcher.send_signal(signal.SIGINT)
    output_until(launcher, "stopping the supervisor")
    launcher.send_signal(signal.SIGINT)
    launcher.communicate(timeout=30)
    assert not (site.var / "unfinished").exists()
    assert site.is_clean()


@pytest.mark.slow
def test_nothing_but_the_database_survives_a_killed_launcher_and_the_next_run_takes_it_over(
    site: Site,
) -> None:
    launcher = site.start(site.programs())
    output_until(launcher, "Ctrl-C ends everything")
    launcher.kill()
    launcher.wait()
    wait_for(lambda: {process.name() for process in site.processes()} == {"postgres"})
    again = site.start(site.programs())
    text = output_until(again, "Ctrl-C ends everything")
    assert "the PostgreSQL" not in text  # it is no news to a person
    again.send_signal(signal.SIGTERM)
    again.communicate(timeout=60)
    assert again.returncode == 0
    assert site.is_clean()


@pytest.mark.slow
def test_a_program_or_database_that_dies_is_started_again(site: Site) -> None:
    launcher = site.start(site.programs())
    output_until(launcher, "Ctrl-C ends everything")
    gateway = next(
        p for p in site.processes() if "gunicorn" in " ".join(p.cmdline()) and p.ppid() == launcher.pid
    )
    gateway.kill()
    text = output_until(launcher, "the gateway was started again")
    assert "the gateway ended (SIGKILL)" in text
    wait_for(partial(_listens, site.port))
    assert get(site.port, "/health/live") == 200
    postmaster = next(p for p in site.processes() if p.name() == "postgres" and p.ppid() == launcher.pid)
    postmaster.kill()
    output_until(launcher, "PostgreSQL had ended and was started again")
    wait_for(lambda: get(site.port, "/v1/videos") == 200)
    launcher.send_signal(signal.SIGINT)
    launcher.communicate(timeout=60)
    assert launcher.returncode == 0
    assert site.is_clean()


@pytest.mark.slow
def test_a_second_run_on_the_same_directory_says_so_in_one_line(site: Site) -> None:
    launcher = site.start(site.programs("", ""))
    output_until(launcher, "Ctrl-C ends everything")
    second = site.start(site.programs("", ""))
    text, _ = second.communicate(timeout=30)
    assert second.returncode == 2
    assert text.startswith("Framekeeper already runs on ")
    assert f"process {launcher.pid}" in text
    assert text.count("\n") == 1
    assert _listens(site.port)


@pytest.mark.slow
def test_a_program_that_refuses_its_configuration_ends_the_run_with_its_words(site: Site) -> None:
    launcher = site.start(site.programs("refuses", ""))
    text, _ = launcher.communicate(timeout=START_SECONDS)
    assert launcher.returncode == 2
    assert "FRAMEKEEPER_MODEL: no such model" in text
    assert "Traceback" not in text
    assert site.is_clean()


@pytest.mark.slow
def test_a_program_that_keeps_dying_is_given_up_with_its_last_lines(site: Site) -> None:
    launcher = site.start(site.programs("dies", ""))
    text, _ = launcher.communicate(timeout=START_SECONDS)
    assert launcher.returncode == 1
    assert text.count("  something is broken") == 5
    assert "ended 5 times without getting ready" in text
    assert site.is_clean()


@pytest.mark.slow
def test_a_person_at_a_terminal_sees_the_stages_and_ends_it_with_ctrl_c(site: Site) -> None:
    master, slave = pty.openpty()
    launcher = subprocess.Popen(
        [sys.executable, "-c", DRIVER, site.programs("", "")],
        env=site.environment | {"TERM": "xterm", "COLUMNS": "120"},
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509  (no threads here)
        cwd=PROJECT,
    )
    os.close(slave)
    seen = b""
    with suppress(OSError):  # Linux' way to say that the other end is closed
        while chunk := os.read(master, 4096):
            seen += chunk
            if b"Ctrl-C ends everything" in seen and b"stopped" not in seen:
                os.write(master, b"\x03")  # impatiently: after everything that it prints
    os.close(master)
    assert launcher.wait(30) == 0
    assert "✓" in seen.decode()
    assert "embedded PostgreSQL answers" in seen.decode()
    assert site.is_clean()


@pytest.mark.parametrize("which", ["PORT", "SUPERVISOR_PORT"])
def test_a_port_in_use_is_named_with_its_setting(site: Site, which: str) -> None:
    port = site.port if which == "PORT" else site.supervisor_port
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", port))
        holder.listen()
        launcher = site.start(site.programs())
        text, _ = launcher.communicate(timeout=30)
    assert launcher.returncode == 2
    assert text.startswith(f"FRAMEKEEPER_{which}={port}: port {port} on 127.0.0.1 is in use")
    assert text.count("\n") == 1
    assert not (site.var / "postgres").exists()


@pytest.mark.parametrize(
    ("setting", "value", "words"),
    [
        ("SUPERVISOR_PORT", "", "change one"),
        ("HOST", "203.0.113.7", "FRAMEKEEPER_HOST=203.0.113.7: cannot listen there"),
        ("HOST", "no such host", "FRAMEKEEPER_HOST='no such host' is not an address"),
        (
            "ENGINE_PYTHON",
            "/nowhere/python",
            "FRAMEKEEPER_ENGINE_PYTHON=/nowhere/python: there is no such program",
        ),
        ("RUNTIMES", "/nowhere", "make runtime"),
        ("PROFILE", "no-such-profile", "no-such-profile"),
        ("MIN_FREE_BYTES", str(1 << 60), "MiB are free there"),
        ("DATABASE_URL", "postgresql://x?nosuch=1", "not a PostgreSQL URL"),
        ("VAR", "/proc/var", "FRAMEKEEPER_VAR"),
        ("MEDIA", "/proc/media", "FRAMEKEEPER_MEDIA=/proc/media: /proc/media cannot be written"),
    ],
)
def test_what_cannot_work_is_told_before_anything_runs(
    site: Site, setting: str, value: str, words: str
) -> None:
    environment = {f"FRAMEKEEPER_{setting}": value or str(site.port)}
    if setting == "RUNTIMES":
        environment["FRAMEKEEPER_ENGINE_PYTHON"] = ""
        del site.environment["FRAMEKEEPER_ENGINE_PYTHON"], environment["FRAMEKEEPER_ENGINE_PYTHON"]
    launcher = site.start(site.programs(), **environment)
    text, _ = launcher.communicate(timeout=30)
    assert launcher.returncode == 2, text
    assert words in text
    assert "Traceback" not in text
    assert site.is_clean()


def test_a_disk_that_is_full_already_is_told_in_one_line(site: Site, full_disk: Path) -> None:
    launcher = site.start(site.programs(), FRAMEKEEPER_VAR=str(full_disk / "var"))
    text, _ = launcher.communicate(timeout=30)
    assert launcher.returncode == 2, text
    assert text.startswith(f"FRAMEKEEPER_VAR={full_disk / 'var'}: 0 MiB are free there")
    assert text.count("\n") == 1


@pytest.mark.slow
def test_ctrl_c_while_it_starts_leaves_nothing(site: Site) -> None:
    launcher = site.start(site.programs())
    wait_for((site.var / "run" / "launcher.lock").exists)
    time.sleep(0.3)
    launcher.send_signal(signal.SIGINT)
    text, _ = launcher.communicate(timeout=60)
    assert launcher.returncode == 0, text
    assert "Traceback" not in text
    assert site.is_clean()
