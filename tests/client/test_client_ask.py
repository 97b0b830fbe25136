"""Asking, streaming and looking: what else can be had of a single request."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from pipeline.store.deltas import Deltas
from tests.client.actors import Worker, waited_for
from tests.support import eventually
from tokenweir import Client, Event, ResultTimeout, Ticket

pytestmark = [pytest.mark.anyio, pytest.mark.leaves_keys("requests are left unanswered")]


async def test_ask_brings_the_answer_or_a_ticket(client: Client, worker: Worker) -> None:
    """Asking never blocks for longer than I say: I get the result, or a ticket that says how the request stands."""
    await client.submit_many(["ahead"] * 4)
    await worker.defer()
    ticket = await client.ask("mine", id="mine", wait_s=0.01)
    assert ticket == Ticket(id="mine", state="submitted")
    await worker.defer()

    ticket = await client.ask("mine", id="mine", wait_s=0.01)

    assert isinstance(ticket, Ticket)
    assert (ticket.state, ticket.position) == ("deferred", 5)
    # 5 requests of some 520 tokens each, the cap included, at 30,000 a minute.
    assert 4 < ticket.eta_s < 7


async def test_status_follows_the_request(client: Client, worker: Worker) -> None:
    """At any time I can look where a request is; after its result, the result is in there."""
    assert await client.status("nobody") is None
    with pytest.raises(ResultTimeout):
        await client.result("nobody", timeout_s=0)
    assert await client.status("nobody") is None
    request_id = await client.submit("x")
    submitted = await client.status(request_id)
    (entry,) = await worker.take()
    await worker.answer(entry, "Tomorrow.", route="edge", attempt=2)

    done = await client.status(request_id)

    assert submitted is not None
    assert (submitted.state, submitted.stage, submitted.result) == ("submitted", "classify", None)
    assert done is not None
    assert done.result is not None
    assert (done.state, done.route, done.attempt, done.result.content) == ("done", "edge", 2, "Tomorrow.")


async def test_a_stream_brings_pieces_then_the_result(client: Client, worker: Worker) -> None:
    """I see the answer grow; when an attempt failed half-way, the next one's pieces say that they start over."""
    deltas = Deltas(worker.connection)
    events: list[Event] = []
    async with asyncio.TaskGroup() as group:
        group.create_task(_collect(client, events, "mine"))
        await waited_for(worker, "mine")
        (entry,) = await worker.take()
        first = worker.request(entry)
        assert first.stream
        for attempt, text in ((1, "Tod"), (2, "To"), (1, "ay"), (2, "morrow")):
            deltas.emitter(msgspec.structs.replace(first, attempt=attempt))(text)
            await deltas.flush()
        await eventually(lambda: len(events) == 3)
        await worker.answer(entry, "Tomorrow.", attempt=2)

    assert [(event.kind, event.attempt, event.text) for event in events[:-1]] == [
        ("delta", 1, "Tod"),
        ("delta", 2, "To"),
        ("delta", 2, "morrow"),
    ]
    assert events[-1].kind == "done"
    assert events[-1].result is not None
    assert events[-1].result.content == "Tomorrow."


async def test_streaming_a_known_id_brings_its_result(client: Client, worker: Worker) -> None:
    """An id that was answered already streams nothing but its result."""
    request_id = await client.submit("x")
    await worker.answer_all()

    events = [event async for event in client.stream("x", id=request_id)]

    assert [event.kind for event in events] == ["done"]


async def test_a_silent_stream_ends_in_time(client: Client) -> None:
    """A stream that brings nothing for `timeout_s` raises, and its request goes on."""
    with pytest.raises(ResultTimeout):
        async for _ in client.stream("x", id="mine", timeout_s=0.05):
            pass

    assert await client.status("mine") is not None


async def _collect(client: Client, events: list[Event], request_id: str) -> None:
    async for event in client.stream("Where is my parcel?", id=request_id):
        events.append(event)
