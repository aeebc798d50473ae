"""Which tests share a process of `pytest -n`.

Not by marks: `--dist loadgroup` has no effect under pytest 9.2 (https://github.com/pytest-dev/pytest-xdist/issues/1386).
"""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling

#: Where tests start the real engine. One such process after another: two would wait for each other's threads.
ENGINES = (
    "tests/stack/",
    "tests/engine/backends/",
    "tests/checkpoint/",
    "tests/profiles/test_launch_on_runtime.py",
    "tests/doctor/test_probing.py",
)


def needs_an_engine(nodeid: str) -> bool:
    """Whether this test belongs to those that start the real engine."""
    return nodeid.startswith(ENGINES)


class Distribution(LoadScopeScheduling):
    """A file's tests go to one process, where a module's fixtures are made once; so do all with an engine."""

    def _split_scope(self, nodeid: str) -> str:
        return "engine" if needs_an_engine(nodeid) else nodeid.partition("::")[0]
