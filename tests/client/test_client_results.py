"""Reading all results: shared out by a group and acknowledged after the loop's body, or plainly."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from tests.client.actors import Open, Worker
from tests.faults.proxy import Proxy
from tests.support import eventually
from tokenweir import Client, Result, StoreUnavailable
from tokenweir.connection import Connection

pytestmark = pytest.mark.anyio

Reading = AsyncIterator[Result]


async def _pending(connection: Connection, group: str = "billing") -> int:
    summary = await connection.command("XPENDING", connection.keys.key("responses"), group)
    return int(summary[0] if isinstance(summary, list) else summary["pending"])


async def _answered(client: Client, worker: Worker, *ids: str) -> None:
    for request_id in ids:
        await client.submit("x", id=request_id)
    await worker.answer_all()


async def test_a_result_is_acknowledged_after_the_loop_body(client: Client, worker: Worker) -> None:
    """While my loop's body runs the result is still the group's; once I ask for the next, it's done with."""
    await _answered(client, worker, "a", "b")
    async with aclosing(client.results("billing")) as reading:
        first = await anext(reading)
        during = await _pending(worker.connection)
        second = await anext(reading)

        assert (first.id, second.id) == ("a", "b")
        assert (during, await _pending(worker.connection)) == (1, 1)


async def test_what_was_in_hand_comes_first_after_a_restart(client: Client, worker: Worker) -> None:
    """A consumer that died in its loop's body gets that result again, before anything new, under the same name."""
    await _answered(client, worker, "a", "b", "c")
    async with aclosing(client.results("billing", consumer="host-1")) as reading:
        assert [(await anext(reading)).id, (await anext(reading)).id] == ["a", "b"]

    async with aclosing(client.results("billing", consumer="host-1")) as reading:
        assert [(await anext(reading)).id, (await anext(reading)).id] == ["b", "c"]


async def test_what_a_dead_consumer_held_goes_to_another(client: Client, worker: Worker) -> None:
    """A result in the hands of a process that never came back is taken over after `takeover_s`."""
    await _answered(client, worker, "a")
    async with aclosing(client.results("billing")) as reading:
        await anext(reading)

    async with aclosing(client.results("billing", takeover_s=0.001)) as reading:
        assert (await anext(reading)).id == "a"


async def test_a_group_shares_results_out(opened: Open, worker: Worker) -> None:
    """Two processes of one group get each result once between them; another group gets them all again."""
    client, other = opened(), opened()
    ids = [f"r{number}" for number in range(20)]
    await _answered(client, worker, *ids)
    seen: list[str] = []

    async def consume(reading: Reading) -> None:
        async for result in reading:
            seen.append(result.id)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(consume(each.results("billing"))) for each in (client, other)]
        await eventually(lambda: len(seen) == 20)
        for task in tasks:
            task.cancel()
    again: list[str] = []
    async with aclosing(client.results("audit")) as reading:
        async for result in reading:
            again.append(result.id)
            if len(again) == 20:
                break

    assert sorted(seen) == sorted(ids)
    assert again == ids


@pytest.mark.parametrize("group", ["billing", None])
async def test_what_cannot_be_read_is_skipped(
    client: Client, worker: Worker, caplog: pytest.LogCaptureFixture, group: str | None
) -> None:
    """An entry that isn't ours stops nobody: it is skipped with a warning, and not left pending."""
    stream = worker.keys.key("responses")
    for fields in (("foo", "bar"), ("id", b"\xff", "status", "ok"), ("id", "x", "status", "ok", "usage", "{")):
        await worker.connection.command("XADD", stream, "*", *fields)
    await _answered(client, worker, "a")

    with caplog.at_level(logging.WARNING):
        async with aclosing(client.results(group)) as reading:
            result = await anext(reading)

    assert result.id == "a"
    assert len(caplog.records) == 3
    assert group is None or await _pending(worker.connection) == 1


async def test_what_was_trimmed_away_is_skipped(client: Client, worker: Worker) -> None:
    """A result that was trimmed while a dead consumer held it doesn't stop the consumer that comes after it."""
    await _answered(client, worker, "a", "b")
    async with aclosing(client.results("billing", consumer="host-1")) as reading:
        await anext(reading)
    await worker.connection.command("XTRIM", worker.keys.key("responses"), "MAXLEN", 1)

    async with aclosing(client.results("billing", consumer="host-1")) as reading:
        assert (await anext(reading)).id == "b"


@pytest.mark.parametrize("group", ["billing", None])
async def test_reading_may_begin_now(client: Client, worker: Worker, group: str | None) -> None:
    """With `start="$"` I get what comes after my first read, and nothing older; no result falls between two reads."""
    await _answered(client, worker, "old")
    seen: list[str] = []

    async def consume() -> None:
        async for result in client.results(group, start="$"):
            seen.append(result.id)

    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(consume())
        await eventually(lambda: _blocked(worker.connection))
        for number in range(5):
            await _answered(client, worker, f"new-{number}")
        await eventually(lambda: len(seen) == 5)
        task.cancel()

    assert seen == [f"new-{number}" for number in range(5)]


async def _blocked(connection: Connection) -> bool:
    clients = await connection.command("INFO", "clients")
    return bool(clients["blocked_clients"] if isinstance(clients, dict) else b"blocked_clients:1" in clients)


async def test_closing_ends_a_loop_that_reads(client: Client, worker: Worker) -> None:
    """Closing the client ends a loop that still waits, with an error; one that I left by `break` is over."""
    await _answered(client, worker, "a")
    async for result in client.results():
        assert result.id == "a"
        break

    async def consume() -> None:
        async for _ in client.results("billing", start="$"):
            pass

    task = asyncio.create_task(consume())
    await eventually(lambda: _blocked(worker.connection))
    await client.aclose()
    async with asyncio.timeout(5):
        await asyncio.wait([task])

    assert isinstance(task.exception(), StoreUnavailable | RuntimeError)
    assert await _blocked(worker.connection) is False


async def test_c03_the_group_disappears_while_we_wait(client: Client, worker: Worker) -> None:
    """When somebody deletes the stream or empties Redis, reading goes on with what comes afterwards."""
    seen: list[str] = []

    async def consume() -> None:
        async for result in client.results("billing"):
            seen.append(result.id)

    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(consume())
        await eventually(lambda: _blocked(worker.connection))
        await worker.connection.command("DEL", worker.keys.key("responses"))
        await _answered(client, worker, "a")
        await eventually(lambda: seen == ["a"])
        task.cancel()


async def test_reading_outlives_a_short_outage(opened: Open, network: Proxy, worker: Worker) -> None:
    """Cut off in the middle, my loop goes on when the network is back: each result once, none lost."""
    client = opened(network.url)
    seen: list[str] = []

    async def consume() -> None:
        async for result in client.results("billing"):
            seen.append(result.id)

    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(consume())
        await _answered(client, worker, "a")
        await eventually(lambda: seen == ["a"])
        network.cut()
        await _answered(opened(), worker, "b", "c")
        network.mend()
        await eventually(lambda: len(seen) == 3)
        task.cancel()

    assert seen == ["a", "b", "c"]
