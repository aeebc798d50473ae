"""Growth is told from noise."""

from __future__ import annotations

import pytest

from framekeeper.engine.memory_watch import JOBS, MemoryWatch

GIB = 1024**3


def reasons(
    resident: list[int], allocated: list[int] | None = None, limit: int | None = None
) -> list[str | None]:
    watch = MemoryWatch(limit)
    held = allocated or [0] * len(resident)
    return [watch.after_job(resident=r, allocated=a) for r, a in zip(resident, held, strict=True)]


def test_steady_growth_of_host_memory_asks_for_a_recycle() -> None:
    found = reasons([4 * GIB + i * GIB // 4 for i in range(JOBS + 1)])
    assert found[:-1] == [None] * JOBS
    assert "host memory grew after each of the last 6 jobs, from 4.00 GiB to 5.50 GiB" in (found[-1] or "")


def test_steady_growth_of_device_memory_asks_for_a_recycle() -> None:
    flat = [4 * GIB] * (JOBS + 1)
    assert "device memory" in (reasons(flat, [GIB * (i + 1) for i in range(JOBS + 1)])[-1] or "")


@pytest.mark.parametrize(
    "resident",
    [
        [4 * GIB] * 20,
        [4 * GIB, 6 * GIB] * 10,
        [4 * GIB + i * 1024 for i in range(20)],
        [GIB * i for i in range(1, 4)] + [3 * GIB] * 10,
    ],
    ids=["flat", "sawtooth", "trifles", "grown and settled"],
)
def test_memory_that_does_not_grow_steadily_is_left_alone(resident: list[int]) -> None:
    assert set(reasons(resident)) == {None}


def test_coming_close_to_the_hosts_limit_asks_for_a_recycle_at_once() -> None:
    assert "90% of the limit" in (reasons([95 * GIB], limit=100 * GIB)[0] or "")
