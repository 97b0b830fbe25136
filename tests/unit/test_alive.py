"""A worker's loops run until the stop, or somebody hears of it."""

from __future__ import annotations

import asyncio

import pytest

from pipeline.alive import LoopEnded, all_alive

pytestmark = pytest.mark.anyio


async def _ends() -> None:
    """Returns as if its work were done."""


async def _fails() -> None:
    raise OSError("gone")


async def _is_cancelled() -> None:
    raise asyncio.CancelledError


@pytest.mark.parametrize("ends", [_ends, _fails, _is_cancelled])
async def test_a_loop_that_ends_before_the_stop_is_named(ends: object) -> None:
    """Whether it returned, failed or was cancelled by a library: the others aren't left to look healthy."""
    going, stop = asyncio.Event(), asyncio.Event()
    tasks = [asyncio.ensure_future(going.wait()), asyncio.create_task(ends())]  # type: ignore[operator]

    with pytest.raises(LoopEnded, match=ends.__name__):  # type: ignore[attr-defined]
        await all_alive(tasks, stop)

    going.set()
    await asyncio.wait(tasks)
    assert tasks[1].cancelled() or str(tasks[1].exception()) in ("None", "gone")


async def test_after_the_stop_loops_may_end() -> None:
    """An orderly end is no fault, also when stop and end come together."""
    stop = asyncio.Event()
    task = asyncio.create_task(_ends())
    await asyncio.wait([task])
    stop.set()

    await all_alive([task], stop)
