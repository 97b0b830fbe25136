"""Cancelling by the client: what its caller learns, and what everybody else does."""

from __future__ import annotations

import asyncio

import pytest

from tests.client.actors import Open, Worker, plain, waited_for
from tests.faults.proxy import Proxy
from tokenweir import Client, RequestError

pytestmark = [pytest.mark.anyio, pytest.mark.leaves_keys("cancelled entries stay until a worker reads them")]


async def test_whoever_waits_gets_the_cancellation(client: Client, opened: Open, worker: Worker) -> None:
    """A cancelled request's result is the same for who cancelled it, who waits for it, and who asks later."""
    request_id = await client.submit("Where is my parcel?", metadata={"ticket": 7})
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(opened().result(request_id))
        await waited_for(worker, request_id)

        cancelled = await client.cancel(request_id)

    assert cancelled is not None
    assert (cancelled.status, cancelled.code, cancelled.ok) == ("cancelled", "cancelled", False)
    assert plain(cancelled)["metadata"] == {"ticket": 7}
    assert plain(waiting.result()) == plain(cancelled)
    status = await client.status(request_id)
    assert status is not None
    assert status.state == "done"
    assert status.result is not None
    assert plain(status.result) == plain(cancelled)


async def test_an_answer_stands(client: Client, worker: Worker) -> None:
    """Cancelling what has been answered brings the answer."""
    request_id = await client.submit("Where is my parcel?")
    await worker.answer_all()

    result = await client.cancel(request_id)

    assert result is not None
    assert (result.ok, result.content) == (True, request_id)


async def test_what_nobody_knows_cannot_be_cancelled(client: Client) -> None:
    """An unknown id brings None, and one that no request can have is refused."""
    assert await client.cancel("nobody") is None
    for wrong in ("", "two words", "x" * 129):
        with pytest.raises(RequestError):
            await client.cancel(wrong)


async def test_many_at_once_in_their_order(client: Client) -> None:
    """Hundreds are cancelled by one call; an id that is named twice or not known costs the others nothing."""
    ids = [
        *await client.submit_many(f"q {number}" for number in range(250)),
        await client.submit("x", metadata={"a": 1}),
    ]

    results = await client.cancel_many([*ids, "nobody", ids[0]])

    assert [result and (result.id, result.status) for result in results] == [
        *((each, "cancelled") for each in ids),
        None,
        (ids[0], "cancelled"),
    ]


async def test_a_cancelled_request_is_known(client: Client, worker: Worker) -> None:
    """Submitting a cancelled id again queues nothing new: its result stands."""
    request_id = await client.submit("x", id="once")
    await client.cancel(request_id)

    await client.submit("x", id="once")

    assert (await client.result("once")).status == "cancelled"
    assert len(await worker.take()) == 1


async def test_to_stop_waiting_cancels_nothing(client: Client, worker: Worker) -> None:
    """A coroutine that waits for a result can be cancelled; the request goes on."""
    request_id = await client.submit("x")
    waiting = asyncio.create_task(client.result(request_id))
    await waited_for(worker, request_id)

    waiting.cancel()
    await asyncio.wait([waiting])
    await worker.answer_all()

    assert waiting.cancelled()
    assert (await client.result(request_id)).ok


async def test_a_lost_reply_is_asked_for_again(opened: Open, network: Proxy, worker: Worker) -> None:
    """When the reply to a cancellation is lost, the next one brings the same result, and there is one of it."""
    client = opened(network.url)
    request_id = await client.submit("x")
    network.lose_replies(1)

    result = await client.cancel(request_id)

    assert result is not None
    assert result.status == "cancelled"
    assert await worker.connection.command("XLEN", worker.keys.key("responses")) == 1
