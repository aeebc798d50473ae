"""How gunicorn runs the gateway: `gunicorn --config python:framekeeper.gateway.gunicorn` (see cli.py).

Everything comes from the settings. gunicorn reads the lower-case names and the hooks of this module.
"""

# gunicorn calls its hooks by position.
# ruff: noqa: ARG001

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

from gunicorn import glogging  # type: ignore[import-untyped]

from framekeeper import logs
from framekeeper.engine.parent_death import die_with_parent
from framekeeper.gateway import metrics_directory
from framekeeper.gateway.reach import open_to_all
from framekeeper.settings import load

_settings = load()

wsgi_app = "framekeeper.gateway.app:create_app()"
worker_class = "framekeeper.gateway.protocol.Worker"
bind = [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in _settings.gateway_addresses]
workers = _settings.gateway_processes
#: A worker that says nothing for so long is killed: its event loop is stuck.
timeout = 60
#: How long requests may take to end after SIGTERM. Followers of events reconnect.
graceful_timeout = 15
#: Longer than clients wait between two polls, so that they keep their connection.
keepalive = 15
backlog = 512
accesslog = None
control_socket_disable = True
proc_name = "framekeeper-gateway"
#: Heartbeat files: in memory, since a slow disk would look like a stuck worker. They have no name.
worker_tmp_dir = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108


class Log(glogging.Logger):  # type: ignore[misc]  # gunicorn has no types
    """gunicorn's logger, speaking through ours."""

    def setup(self, cfg: Any) -> None:
        """Let gunicorn compute what it caches, then replace its handlers."""
        super().setup(cfg)
        logs.configure(_settings, "gateway")


logger_class = Log


def on_starting(server: Any) -> None:
    """In the master, once: begin with empty metrics, as files of dead processes would count for ever."""
    metrics_directory.remove(_settings)
    try:
        directory = metrics_directory.make(_settings)
    except OSError as error:
        sys.stderr.write(
            f"FRAMEKEEPER_VAR={_settings.var}: {error.filename or 'a file'} cannot be written "
            f"({error.strerror}): set FRAMEKEEPER_VAR to a directory that can\n"
        )
        sys.exit(2)
    if warning := open_to_all(_settings):
        server.log.warning(warning)
    # prometheus_client reads this when it is first imported, which is in a worker.
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(directory)


def post_fork(server: Any, worker: Any) -> None:
    """In a new worker: end with the master, or its orphans would hold the port."""
    die_with_parent(worker.ppid)


def post_worker_init(worker: Any) -> None:
    """In a worker whose class has replaced uvicorn's log handlers: put ours back."""
    logs.configure(_settings, "gateway")


def child_exit(server: Any, worker: Any) -> None:
    """In the master, after a worker ended: its gauges end with it, its counters go into the sums."""
    from prometheus_client import multiprocess  # noqa: PLC0415  (needs the variable above)

    multiprocess.mark_process_dead(worker.pid)  # type: ignore[no-untyped-call]
    try:
        metrics_directory.retire(Path(os.environ["PROMETHEUS_MULTIPROC_DIR"]), server.WORKERS.keys())
    except (OSError, ValueError) as error:
        # Nothing is lost: the files are summed up by every scrape.
        server.log.warning(f"metrics of ended processes stay in files of their own: {error}")


def on_exit(server: Any) -> None:
    """In the master, last."""
    metrics_directory.remove(_settings)
    if directory := os.environ.get("PROMETHEUS_MULTIPROC_DIR"):
        shutil.rmtree(directory, ignore_errors=True)
