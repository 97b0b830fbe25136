"""No loop of a worker ends unnoticed: one that looks healthy and does half of its work is worse than none."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import structlog

log = structlog.get_logger()


class LoopEnded(Exception):
    """A loop that should run until the stop ended before it: the process ends too, and is started again."""


async def all_alive(tasks: Sequence[asyncio.Task[None]], stop: asyncio.Event) -> None:
    """Return once `stop` is set.

    A task group ends with a child that fails, but not with one that returns, or that a library cancelled.

    Raises:
        LoopEnded: one of `tasks` ended first, for whatever reason.
    """
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait([stopping, *tasks], return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
    ended = [getattr(task.get_coro(), "__qualname__", task.get_name()) for task in tasks if task.done()]
    if ended and not stop.is_set():
        log.error("loop_ended", loops=ended, effect="the process ends, and is started again")
        raise LoopEnded(f"ended before the stop: {', '.join(ended)}")
