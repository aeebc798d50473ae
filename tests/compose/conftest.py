"""One stack for all tests of a run: coming up takes most of their time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from compose.stack import Stack
from system import free_port


@pytest.fixture(scope="session")
def stack() -> Iterator[Stack]:
    stack = Stack(free_port(), free_port())
    try:
        stack.up()
        yield stack
    finally:
        stack.compose("--profile", "observability", "down", "--volumes", "--timeout", "60")
