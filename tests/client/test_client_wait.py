"""Waiting for single requests: any number of waits, from anywhere, at any time, over one inbox."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.client.actors import Open, Worker, failure, waited_for
from tests.faults.proxy import Proxy
from tests.support import Server, eventually, running_server
from tokenweir import Client, QueueFull, RequestError, Result, ResultTimeout, StoreUnavailable, TokenweirError
from tokenweir.connection import Connection, connect
from tokenweir.keys import Keys

pytestmark = [pytest.mark.anyio, pytest.mark.leaves_keys("requests are left unanswered")]


async def test_a_result_that_is_there_comes_at_once(client: Client, worker: Worker) -> None:
    """Asked for after the answer, a result needs no waiting: even a timeout of 0 brings it."""
    request_id = await client.submit("x")
    await worker.answer_all()

    result = await client.result(request_id, timeout_s=0)

    assert (result.id, result.status, result.content, result.ok) == (request_id, "ok", request_id, True)


async def test_everybody_who_waits_gets_the_result(opened: Open, worker: Worker) -> None:
    """One request may be awaited by several coroutines and several processes; all get its result."""
    mine, other = opened(), opened()
    request_id = await mine.submit("x")
    async with asyncio.TaskGroup() as group:
        waits = [group.create_task(each.result(request_id)) for each in (mine, mine, other)]
        await waited_for(worker, request_id, by=2)
        await worker.answer_all()

    assert [wait.result().content for wait in waits] == [request_id] * 3


async def test_waiting_before_the_request_exists(opened: Open, worker: Worker) -> None:
    """I may wait for an id that a producer elsewhere has yet to write, by submit or by plain XADD."""
    mine, other = opened(), opened()
    async with asyncio.TaskGroup() as group:
        raw = group.create_task(mine.result("raw-1"))
        submitted = group.create_task(mine.result("api-1"))
        for request_id in ("raw-1", "api-1"):
            await waited_for(worker, request_id)
        await worker.connection.command("XADD", worker.keys.key("ingest"), "*", "id", "raw-1", "prompt", "x")
        streamed = group.create_task(_last(other, "api-1"))
        await waited_for(worker, "api-1", by=2)
        await worker.answer_all()

    assert raw.result().content == "raw-1"
    assert submitted.result().content == "api-1"
    final = streamed.result()
    assert final is not None
    assert final.content == "api-1"


async def _last(client: Client, request_id: str) -> Result | None:
    events = [event async for event in client.stream("x", id=request_id)]
    return events[-1].result


async def test_no_result_in_time_leaves_the_request_alone(client: Client, worker: Worker) -> None:
    """ResultTimeout costs nothing: the request goes on, and I can ask again."""
    request_id = await client.submit("x")
    with pytest.raises(ResultTimeout, match=request_id):
        await client.result(request_id, timeout_s=0.05)

    await worker.answer_all()

    assert (await client.result(request_id)).content == request_id


async def test_an_id_that_can_be_none_is_refused(client: Client) -> None:
    """An id with a blank or newline in it never reaches a key's name."""
    for call in (client.result("a b"), client.status("a\n")):
        with pytest.raises(RequestError):
            await call


@asynccontextmanager
async def _aside(server: Server) -> AsyncIterator[Worker]:
    """A worker of the default pool with one connection to a server of the test's own."""
    connection = Connection(connect(server.url, max_connections=1), Keys())
    try:
        yield Worker(connection)
    finally:
        await connection.aclose()


async def test_a_thousand_waits_use_five_connections() -> None:
    """However many results I wait for at once, my process holds at most five connections to Redis."""
    with running_server("valkey") as server:
        async with _aside(server) as worker, Client(server.url) as client, asyncio.TaskGroup() as group:
            ids = await client.submit_many(["x"] * 1000)
            waits = [group.create_task(client.result(request_id)) for request_id in ids]
            await waited_for(worker, ids[-1])
            clients = await worker.connection.command("CLIENT", "LIST")
            await worker.answer_all()

    assert len(clients.splitlines() if isinstance(clients, bytes) else clients) <= 5 + 1
    assert [wait.result().content for wait in waits] == ids


async def test_a_full_memory_still_gives_results() -> None:
    """At maxmemory nothing new is taken in, yet whoever waits gets his result, or is put down for it."""
    with running_server("valkey") as server:
        async with _aside(server) as worker, Client(server.url) as client, asyncio.TaskGroup() as group:
            answered, waiting = await client.submit_many(["x", "y"])
            first, second = await worker.take()
            await worker.answer(first)
            await worker.connection.command("CONFIG", "SET", "maxmemory", 1)

            with pytest.raises(QueueFull, match="maxmemory"):
                await client.submit("z")
            assert (await client.result(answered)).ok
            assert await client.status(waiting) is not None
            later = group.create_task(client.result(waiting))
            await waited_for(worker, waiting)
            await worker.answer(second)

    assert later.result().ok


@pytest.mark.one_server("it waits for the client's own clock")
async def test_a_lost_event_hangs_nobody(client: Client, worker: Worker) -> None:
    """When Redis loses what it had for me, a result still comes within seconds; a lost request is said to be."""
    kept, lost = await client.submit_many(["kept", "lost"])
    first, _ = await worker.take()
    async with asyncio.TaskGroup() as group:
        result = group.create_task(client.result(kept))
        failed = group.create_task(failure(client, lost))
        for request_id in (kept, lost):
            await waited_for(worker, request_id)
        await worker.connection.command("HDEL", worker.keys.status(kept), "inbox")
        await worker.connection.command("DEL", worker.keys.status(lost))
        await worker.answer(first)

    assert result.result().content == "Tomorrow."
    assert isinstance(failed.result(), RequestError)


async def test_a_wait_outlives_a_short_outage(opened: Open, network: Proxy, worker: Worker) -> None:
    """A result that is written while I'm cut off from Redis reaches me when the network is back."""
    client = opened(network.url)
    request_id = await client.submit("x")
    async with asyncio.TaskGroup() as group:
        result = group.create_task(client.result(request_id))
        await waited_for(worker, request_id)
        network.cut()
        await worker.answer_all()
        network.mend()

    assert result.result().content == request_id


@pytest.mark.slow
@pytest.mark.one_server("it waits for the client's own clock")
async def test_a_silent_redis_is_said_within_ten_seconds(opened: Open, network: Proxy, worker: Worker) -> None:
    """With a Redis that takes everything and says nothing, no call hangs: each says StoreUnavailable in some 10 s."""
    client = opened(network.url)
    request_id = await client.submit("x")
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(failure(client, request_id))
        await waited_for(worker, request_id)
        network.swallow("replies")
        began = time.monotonic()
        calls = [group.create_task(failure(client, request_id)) for _ in range(20)]

    assert time.monotonic() - began < 12
    assert {type(call.result()) for call in (waiting, *calls)} == {StoreUnavailable}


@pytest.mark.parametrize("burst", [1, 20])
async def test_cancelling_at_any_moment_leaves_the_client_usable(client: Client, worker: Worker, burst: int) -> None:
    """A wait may be cancelled at any step, alone or with others: it ends, and the client serves on."""
    request_id = await client.submit("x")
    for steps in range(61):
        waits = [asyncio.create_task(client.result(request_id)) for _ in range(burst)]
        for _ in range(steps):
            await asyncio.sleep(0)
        for wait in waits:
            wait.cancel()
        async with asyncio.timeout(5):
            await asyncio.wait(waits)
        assert all(wait.cancelled() for wait in waits)

    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        waits = [group.create_task(client.result(request_id)) for _ in range(10)]
        await waited_for(worker, request_id)
        await worker.answer_all()
    assert [wait.result().content for wait in waits] == [request_id] * 10


async def test_closing_leaves_nothing_behind(redis_url: str, keys: Keys, connection: Connection) -> None:
    """After the `async with` block my process has no task of the client's left, and Redis no inbox."""
    before = asyncio.all_tasks()
    async with Client(redis_url, pool=keys.pool) as client:
        with pytest.raises(ResultTimeout):
            await client.result(await client.submit("x"), timeout_s=0.01)
        reading = asyncio.all_tasks() - before

    assert len(reading) == 1
    assert asyncio.all_tasks() == before
    assert [key async for key in connection.redis.scan_iter(f"{keys.root}inbox:*")] == []
    await client.aclose()


async def test_closing_while_something_waits(opened: Open, worker: Worker) -> None:
    """Whoever still waits when the client is closed gets an error, and so does whoever comes later."""
    client = opened()
    request_id = await client.submit("x")
    async with asyncio.TaskGroup() as group:
        failed = group.create_task(failure(client, request_id))
        await waited_for(worker, request_id)
        await client.aclose()

    assert isinstance(failed.result(), TokenweirError)
    with pytest.raises(RuntimeError):
        await client.result(request_id)


async def test_events_that_are_read_leave_the_inbox(client: Client, worker: Worker) -> None:
    """A busy inbox doesn't grow: what has been read is dropped, and what is left behind expires."""
    for _ in range(3):
        async with asyncio.TaskGroup() as group:
            request_id = await client.submit("x")
            group.create_task(client.result(request_id))
            await waited_for(worker, request_id)
            await worker.answer_all()

    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        group.create_task(failure(client, "nobody"))
        (inbox,) = [key async for key in worker.connection.redis.scan_iter(f"{worker.keys.root}inbox:*")]

        async def empty() -> bool:
            return not await worker.connection.command("XLEN", inbox)

        await eventually(empty)
        assert await worker.connection.command("TTL", inbox) > 0
        await client.aclose()
