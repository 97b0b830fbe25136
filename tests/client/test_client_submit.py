"""Submitting: once each, checked at once, refused honestly."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.client.actors import Open, Worker
from tests.faults.proxy import Proxy
from tokenweir import Client, QueueFull, RequestError, StoreUnavailable
from tokenweir.client import Draft
from tokenweir.connection import Connection

pytestmark = [pytest.mark.anyio, pytest.mark.leaves_keys("requests are left unanswered")]


async def test_the_engine_reads_what_was_submitted(client: Client, worker: Worker) -> None:
    """Everything I say about a request reaches the engine as I said it."""
    request_id = await client.submit(
        "Where is my parcel?",
        tenant="acme",
        priority="standard",
        task="intent",
        complexity="complex",
        deadline=4_000_000_000.5,
        stream=True,
        metadata={"ticket": 7},
    )

    (entry,) = await worker.take()
    request = worker.request(entry)

    assert request.id == request_id
    assert request.chat()["messages"] == [{"role": "user", "content": "Where is my parcel?"}]
    assert (request.tenant, request.priority, request.task, request.simple) == ("acme", "standard", "intent", False)
    assert (request.deadline_ms, request.stream) == (4_000_000_000_500, True)
    assert msgspec.json.decode(request.metadata) == {"ticket": 7}


@pytest.mark.parametrize(
    "content",
    [
        {"messages": [{"role": "user", "content": "Hi \ud83d there"}], "max_tokens": 5},
        [{"role": "user", "content": "Hi \ud83d there"}],
        "Hi \ud83d there",
    ],
    ids=["body", "messages", "prompt"],
)
async def test_c42_half_a_surrogate_pair_is_mended(client: Client, worker: Worker, content: Any) -> None:
    """Text cut in the middle of an emoji, in a prompt or a chat body, is taken with a replacement character."""
    await client.submit(content)

    (entry,) = await worker.take()

    assert worker.request(entry).chat()["messages"][0]["content"] == "Hi \ufffd there"


async def test_batch_work_enters_by_its_own_stream(client: Client, worker: Worker) -> None:
    """My batch of thousands doesn't stand in front of anybody."""
    await client.submit("night shift", priority="batch")

    (entry,) = await worker.take()

    assert entry.lane == "ingest:batch"


async def test_a_known_id_queues_nothing_new(client: Client, worker: Worker) -> None:
    """I may submit the same id as often as I like: one request, and one id comes back."""
    ids = {await client.submit(text, id="order-7") for text in ("first", "second")}

    assert ids == {"order-7"}
    assert [worker.request(entry).chat()["messages"][0]["content"] for entry in await worker.take()] == ["first"]


@pytest.mark.parametrize(
    ("content", "more"),
    [
        ("", {}),
        ({}, {}),
        ([], {}),
        ("x", {"id": "two words"}),
        ("x", {"id": ""}),
        ("x", {"id": "é"}),
        ("x", {"id": "a" * 129}),
        ("x", {"priority": "urgent"}),
        ("x", {"complexity": "hard"}),
        ("x", {"tenant": ""}),
        ("x", {"task": "a\nb"}),
        ("x", {"deadline": -1}),
        ("x", {"deadline": 1_800_000_000_000}),
        ("x", {"max_wait": float("nan")}),
        ("x", {"metadata": {"big": "x" * 5000}}),
        ({"messages": [object()]}, {}),
    ],
)
async def test_what_can_never_succeed_is_refused_at_once(
    client: Client, worker: Worker, content: Any, more: dict[str, Any]
) -> None:
    """A mistake of mine comes back from submit itself, and nothing is queued."""
    with pytest.raises(RequestError):
        await client.submit(content, **more)

    assert await worker.take() == []


async def test_a_full_queue_says_when_to_come_back(opened: Open, worker: Worker) -> None:
    """Beyond `max_waiting` nothing is queued, and I'm told how long it takes until enough has gone."""
    client = opened(max_waiting=20)
    await worker.gate.seed()
    await opened().submit_many(["x"] * 40)
    with pytest.raises(QueueFull) as at_once:
        await client.submit("one more")
    await worker.defer()

    with pytest.raises(QueueFull) as counted:
        await client.submit("one more")

    # 500 a minute at most: 21 too many are gone in 2.6 s. Once the engine has counted their tokens (some 520
    # each with the default cap, of 30,000 a minute) it takes longer.
    assert 2 < at_once.value.retry_after_s < 4
    assert 15 < counted.value.retry_after_s < 40


async def test_a_full_queue_without_workers_says_the_longest_time(opened: Open) -> None:
    """When no worker has ever run, nothing is known to come free: I'm told to come back in a minute."""
    client = opened(max_waiting=1)
    await client.submit("x")

    with pytest.raises(QueueFull) as refused:
        await client.submit("y")

    assert refused.value.retry_after_s == 60


async def test_a_known_id_is_known_even_when_the_queue_is_full(opened: Open) -> None:
    """A repeat of what is queued already is no error, however full the queue."""
    client = opened(max_waiting=1)
    await client.submit("x", id="mine")

    assert await client.submit("x", id="mine") == "mine"


@pytest.mark.parametrize("lost", [1, 2])
async def test_c22_a_lost_reply_queues_once(opened: Open, network: Proxy, worker: Worker, lost: int) -> None:
    """When the network drops Redis's answer, my request is neither lost nor queued twice."""
    client = opened(network.url)
    await client.submit("first")
    network.lose_replies(lost)

    request_id = await client.submit("second")

    assert [worker.request(entry).id for entry in await worker.take()][1:] == [request_id]


async def test_redis_away_is_said(opened: Open, network: Proxy) -> None:
    """With Redis refusing connections, submit and status say StoreUnavailable in a moment; afterwards they work."""
    client = opened(network.url)
    network.cut()
    for call in (client.submit("x"), client.status("x"), client.result("x")):
        with pytest.raises(StoreUnavailable):
            await call

    network.mend()

    assert await client.submit("x", id="mine") == "mine"


async def test_many_keep_their_order(client: Client, worker: Worker) -> None:
    """Ids of a batch come back in the order in which I gave the requests, which is also their order in the queue."""
    ids = await client.submit_many([f"request {number}" for number in range(1200)])

    entries = await worker.take(count=2000)

    assert [worker.request(entry).id for entry in entries] == ids
    assert worker.request(entries[-1]).chat()["messages"][0]["content"] == "request 1199"


async def test_many_may_be_repeated(opened: Open, worker: Worker) -> None:
    """After a full queue stopped a batch half-way, the same drafts again queue the rest, and nothing twice."""
    drafts = [Draft("x", priority="batch" if number % 2 else "interactive") for number in range(1100)]
    with pytest.raises(QueueFull):
        await opened(max_waiting=700).submit_many(drafts)

    ids = await opened().submit_many(drafts)

    entries = await worker.take(count=2000)
    assert len(entries) == 1100
    assert {worker.request(entry).id for entry in entries} == set(ids)


async def test_many_are_checked_before_any_is_queued(client: Client, worker: Worker) -> None:
    """One bad line in a file of requests queues none of them."""
    with pytest.raises(RequestError):
        await client.submit_many(["good", Draft("x", id="not good")])

    assert await worker.take() == []


async def test_c25_an_emptied_script_cache_is_no_error(client: Client, connection: Connection, worker: Worker) -> None:
    """After Redis has forgotten its scripts, a batch is still queued, each request once."""
    await connection.command("SCRIPT", "FLUSH")

    ids = await client.submit_many(["a", "b", "c"])

    assert [worker.request(entry).id for entry in await worker.take()] == ids
