"""How long requests and jobs take, by a client's clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import psycopg

from videos import LARGE, SMALL, Videos

CLIENTS = 4


@dataclass(frozen=True)
class Job:
    """A finished job: its id, seconds from POST to `completed` as a client saw it, and its last answer."""

    id: str
    seconds: float
    video: dict[str, Any]


def one_by_one(url: str, fields: dict[str, Any], count: int) -> list[Job]:
    """Submit a job, wait for its end, then the next."""
    jobs = []
    with Videos(url) as videos:
        for _ in range(count):
            began = time.perf_counter()
            video_id = videos.create(fields)
            video = videos.completed(video_id)
            jobs.append(Job(video_id, time.perf_counter() - began, video))
    return jobs


def queued_together(url: str, fields: dict[str, Any], count: int) -> tuple[list[str], float]:
    """Submit all at once and wait for all: ids in order, and seconds a job."""
    with Videos(url) as videos:
        began = time.perf_counter()
        ids = [videos.create(fields) for _ in range(count)]
        for each in ids:
            videos.completed(each)
        return ids, (time.perf_counter() - began) / count


@dataclass(frozen=True)
class UnderLoad:
    """Latencies in seconds while long jobs run; `busy` says whether one ran to the very end."""

    submits: list[float]
    reads: list[float]
    deletes: list[float]
    busy: bool


def under_load(url: str, *, submits: int, reads: int, long_jobs: int) -> UnderLoad:
    """`reads` status reads and then `submits` submissions by CLIENTS threads, while long jobs run.

    What was queued is deleted at the end, the long jobs as well, and the engine is idle again.
    """
    with Videos(url) as videos:
        long = [videos.create(LARGE) for _ in range(long_jobs)]
        while videos.get(long[0])["status"] == "queued":
            time.sleep(0.01)
        reading, _ = _by_threads(url, lambda each, n: each.get(long[n % len(long)]), reads)
        submitting, queued = _by_threads(url, lambda each, _: each.create(SMALL), submits)
        busy = videos.get(long[-1])["status"] in ("queued", "in_progress")
        deleting, _ = _by_threads(url, lambda each, n: each.delete(queued[n]), len(queued))
        for each in reversed(long):
            videos.delete(each)
        videos.completed(videos.create(SMALL), 300)
    return UnderLoad(submitting, reading, deleting, busy)


def _by_threads(url: str, call: Callable[[Videos, int], Any], count: int) -> tuple[list[float], list[Any]]:
    """`count` calls by CLIENTS threads, each with one warm connection: seconds of each, and answers."""

    def client(numbers: Iterable[int]) -> list[tuple[float, Any]]:
        seen = []
        with Videos(url) as videos:
            videos.status_code("/v1/models")
            for number in numbers:
                began = time.perf_counter()
                answer = call(videos, number)
                seen.append((time.perf_counter() - began, answer))
        return seen

    with ThreadPoolExecutor(CLIENTS) as pool:
        parts = list(pool.map(client, [range(first, count, CLIENTS) for first in range(CLIENTS)]))
    calls = [each for part in parts for each in part]
    return [seconds for seconds, _ in calls], [answer for _, answer in calls]


@dataclass(frozen=True)
class Row:
    """A completed job in the database; moments in Unix seconds of the database's clock."""

    id: str
    created: float
    started: float
    completed: float
    facts: dict[str, Any]

    @property
    def generation(self) -> float:
        """Seconds in the engine, from the prompt to the last frame."""
        return float(self.facts["seconds"]["total"])


def rows(database_url: str, ids: Sequence[str]) -> list[Row]:
    """The rows of these jobs in the order in which they were started."""
    with psycopg.connect(database_url) as connection:
        found = connection.execute(
            """
            SELECT id, extract(epoch FROM created_at)::float8, extract(epoch FROM started_at)::float8,
                extract(epoch FROM completed_at)::float8, facts
            FROM videos WHERE id = ANY(%s) AND state = 'completed' ORDER BY started_at
            """,
            [list(ids)],
        ).fetchall()
    return [Row(*each) for each in found]


def gaps(jobs: Sequence[Row]) -> list[float]:
    """Seconds between the end of a job's decoding and the start of the next, which waited already.

    A job's generation begins some milliseconds after `started`. That delay is the same for all, so that the
    engine was idle for the time between two starts less the first one's generation.
    """
    return [after.started - before.started - before.generation for before, after in pairwise(jobs)]
