"""Who goes first among the callers of one process, and how few questions that takes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.limiter.books import LIMITS, Books, Open
from tests.support import eventually
from tokenweir import Limiter, LimitReached
from tokenweir.connection import Connection
from tokenweir.wire import Class

pytestmark = pytest.mark.anyio

CAPACITY = LIMITS["tpm"] // 10


class Queue:
    """Callers that enter one after the other, and note in which order they are granted."""

    def __init__(self, limiter: Limiter) -> None:
        self.order: list[str] = []
        self._limiter = limiter
        self._tasks: list[asyncio.Task[None]] = []

    async def add(self, name: str, *, tokens: int, priority: Class = "interactive", **more: Any) -> asyncio.Task[None]:
        task = asyncio.create_task(self._call(name, tokens=tokens, priority=priority, **more))
        self._tasks.append(task)
        await asyncio.sleep(0)  # it stands in line now
        return task

    async def _call(self, name: str, **arguments: Any) -> None:
        async with self._limiter.reserve(**arguments):
            self.order.append(name)

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)


async def scripts_run(connection: Connection) -> int:
    stats = await connection.command("INFO", "commandstats")
    return int(stats.get("cmdstat_evalsha", {}).get("calls", 0))


async def test_first_come_first_served(limiter: Limiter, books: Books) -> None:
    """In one class, callers are granted as they came, however they differ in size."""
    await books.warm(tpm=0)
    queue = Queue(limiter)
    for number in range(30):
        await queue.add(str(number), tokens=1 + number % 7)

    await eventually(lambda: len(queue.order) == 30)

    assert queue.order == [str(number) for number in range(30)]


async def test_higher_classes_go_first(limiter: Limiter, books: Books) -> None:
    """What waits goes by class, not by arrival."""
    await books.warm(tpm=0)
    queue = Queue(limiter)
    await queue.add("blocks", tokens=40)
    for name in ("batch", "standard", "interactive"):
        await queue.add(name, tokens=1, priority=name)

    await eventually(lambda: "interactive" in queue.order)
    await queue.end()

    assert queue.order == ["blocks", "interactive"]


async def test_who_comes_above_passes_who_waits_below(limiter: Limiter, books: Books) -> None:
    """A batch caller that leaves a share to others doesn't keep an interactive one from it."""
    await books.warm(tpm=CAPACITY * 0.2)
    queue = Queue(limiter)
    await queue.add("batch", tokens=10, priority="batch")
    await queue.add("standard", tokens=10, priority="standard")

    async with limiter.reserve(tokens=10, wait_s=1):
        await eventually(lambda: queue.order)
    await queue.end()

    assert queue.order == ["standard"]


async def test_small_ones_behind_a_large_one_wait(limiter: Limiter, books: Books) -> None:
    """A caller that fits doesn't pass one of its class that doesn't fit yet: large calls aren't starved."""
    await books.warm(tpm=1000)
    queue = Queue(limiter)
    large = await queue.add("large", tokens=1050)
    small = await queue.add("small", tokens=1)

    with pytest.raises(LimitReached):
        await limiter.reserve(tokens=1, wait_s=0).__aenter__()
    await asyncio.wait([large, small])

    assert queue.order == ["large", "small"]


async def test_who_gives_up_keeps_nobody_waiting(limiter: Limiter, books: Books) -> None:
    """When the large one at the head is cancelled, or its time is over, those behind it go at once."""
    await books.warm(tpm=1000)
    queue = Queue(limiter)
    large = await queue.add("large", tokens=900_000)
    small = await queue.add("small", tokens=1)
    await eventually(lambda: limiter._desk is not None and limiter._desk._head is not None)
    large.cancel()
    # Whoever just waits is looked after once a second.
    await asyncio.wait([small], timeout=0.7)
    assert small.done()
    timed = await queue.add("timed", tokens=900_000, wait_s=0.05)
    last = await queue.add("last", tokens=1)
    await asyncio.wait([timed, last], timeout=0.7)

    assert last.done()
    assert queue.order == ["small", "last"]
    assert isinstance(timed.exception(), LimitReached)


async def test_many_callers_share_few_questions(limiter: Limiter, books: Books, connection: Connection) -> None:
    """A thousand callers at once cost some script calls, not a thousand."""
    before = await scripts_run(connection)

    async def call() -> None:
        async with limiter.reserve(tokens=1) as grant:
            grant.settle(tokens=1)

    async with asyncio.TaskGroup() as group:
        for _ in range(1000):
            group.create_task(call())
    await limiter.aclose()

    assert await books.used("tpm") == 1000
    assert await scripts_run(connection) - before <= 24


async def test_waiting_is_quiet(limiter: Limiter, books: Books, connection: Connection) -> None:
    """A hundred who wait for room ask when there may be some, not all the time."""
    await books.warm(tpm=0)
    before = await scripts_run(connection)
    calls = [asyncio.create_task(limiter.reserve(tokens=1_000).__aenter__()) for _ in range(100)]

    _, waiting = await asyncio.wait(calls, timeout=0.5)
    for call in calls:
        call.cancel()
    await asyncio.wait(calls)

    assert len(waiting) == 100
    assert await scripts_run(connection) - before <= 2


async def test_two_limiters_share_one_budget(limiter: Limiter, opened: Open, books: Books) -> None:
    """What one program takes, the other can't have."""
    await books.warm(tpm=1000)
    async with opened() as other, limiter.reserve(tokens=900):
        with pytest.raises(LimitReached):
            await other.reserve(tokens=900, wait_s=0).__aenter__()
    assert await books.used("tpm") == 900
