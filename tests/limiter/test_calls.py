"""How long a call to Redis may take, and who may end it: what the limiter's own timing rests on."""

from __future__ import annotations

import asyncio

import pytest

from tokenweir import StoreUnavailable
from tokenweir.connection import Connection

pytestmark = pytest.mark.anyio

_NEVER = ("BLPOP", "{nobody}:writes:here", 0)


async def test_a_call_without_a_reply_ends_in_time(connection: Connection) -> None:
    """Redis stays silent: an error after the given time, and the next call gets the answer to its own question."""
    for _ in range(20):
        with pytest.raises(StoreUnavailable, match=r"no reply from Redis within 0\.01 s"):
            await connection.command(*_NEVER, timeout_s=0.01)

    assert await connection.command("ECHO", "mine") == b"mine"


async def test_calls_that_wait_for_a_place_end_in_time_too(connection: Connection) -> None:
    """All connections are taken: who gets none in time is told so."""
    places = connection.redis.connection_pool.max_connections
    calls = [connection.command(*_NEVER, timeout_s=0.2) for _ in range(places)]
    late = [connection.command("ECHO", "late", timeout_s=0.05) for _ in range(3)]

    answers = await asyncio.gather(*calls, *late, return_exceptions=True)

    assert {type(answer) for answer in answers} == {StoreUnavailable}
    assert [str(answer) for answer in answers[places:]] == ["no reply from Redis within 0.05 s"] * 3


async def test_a_callers_own_timeout_stays_its_own(connection: Connection) -> None:
    """`asyncio.timeout` round a call ends it as it ends anything else."""
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await connection.command(*_NEVER, timeout_s=5)

    task = asyncio.current_task()
    assert task
    assert not task.cancelling()


async def test_a_cancellation_is_never_lost(connection: Connection) -> None:
    """Cancelled while its time runs out, a call is cancelled: 50 tries round that instant."""
    loop = asyncio.get_running_loop()

    async def call() -> None:
        await connection.command(*_NEVER, timeout_s=0.01)

    for step in range(50):
        task = asyncio.create_task(call())
        cancelled = False

        def cancel(task: asyncio.Task[None] = task) -> None:
            nonlocal cancelled
            cancelled = task.cancel()

        loop.call_later(0.0095 + step * 2e-5, cancel)
        await asyncio.wait([task])

        assert task.cancelled() or isinstance(task.exception(), StoreUnavailable)
        assert task.cancelled() or not cancelled, "it was cancelled, and went on"
