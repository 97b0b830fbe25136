"""Calls that nobody wants any more are closed by the loop, whatever the stage does; and hearing of it may fail."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from pipeline.config import Deployment, Edge, Pool
from pipeline.loop import LoopSettings, StageLoop
from pipeline.message import Request, encode
from pipeline.metrics import Metrics
from pipeline.outcome import Outcome
from pipeline.stage import Delivery, Stage
from pipeline.store import Store
from stages.deferred import Deferred
from stages.gate import GateStage
from tests.support import eventually
from tokenweir.cancellation import cancel
from tokenweir.connection import Connection
from tokenweir.keys import Keys
from tokenweir.wire import Result, result_from_fields

pytestmark = pytest.mark.anyio

LIMITS: dict[str, Any] = {"rpm": 600, "tpm": 60_000, "window_s": 2, "send_within_s": 0.5, "max_in_flight": 4}
POOL = Pool(deployments=(Deployment(**LIMITS),), edge=Edge())


class _Slow:
    """A stage of calls that take as long as they are let."""

    concurrency = 4
    longest_s = 60.0
    ready = True

    def __init__(self, name: str) -> None:
        self.name, self.calls = name, name == "premium"
        self.lanes: tuple[str, ...] = (name,)
        self.running: set[str] = set()
        self.closed: list[str] = []

    async def handle(self, delivery: Delivery) -> Outcome:
        request_id = delivery.request.id
        self.running.add(request_id)
        try:
            await asyncio.Event().wait()
        finally:
            self.running.discard(request_id)
            self.closed.append(request_id)
        raise AssertionError("nobody answers here")

    async def run(self, stop: asyncio.Event) -> None:
        """Nothing beside."""

    async def aclose(self) -> None:
        """Nothing was opened."""


@asynccontextmanager
async def working(url: str, keys: Keys, stage: _Slow) -> AsyncIterator[Store]:
    """A worker with this stage, a gate and a backlog."""
    store, stop, metrics = Store(url, keys, POOL), asyncio.Event(), Metrics("main", ["default"])
    await store.gate.seed()
    await store.gate.beat(premium_slots=4 if stage.calls else 0, edge_slots=0 if stage.calls else 4, ttl_ms=60_000)
    settings = LoopSettings(lease_s=30, drain_s=1, max_deliveries=3, max_attempts=3)
    async with asyncio.TaskGroup() as group:
        hearing = group.create_task(store.cancelled.run())
        stages: tuple[Stage, ...] = (GateStage(), Deferred(), stage)
        for one in stages:
            group.create_task(StageLoop(one, store, metrics, settings).run(stop))
        try:
            yield store
        finally:
            stop.set()
            hearing.cancel()
    await store.aclose()


async def claimed(connection: Connection, name: str, *, simple: bool = False, deadline_ms: int = 0) -> None:
    """A request at the gate that was classified."""
    body = msgspec.Raw(b"{}")
    request = Request(id=name, body=body, prompt_tokens=60, output_tokens=40, simple=simple, edge=simple)
    request = msgspec.structs.replace(request, deadline_ms=deadline_ms)
    keys = connection.keys
    await connection.command("HSET", keys.status(name), "entry", "ingest 1-1", "state", "waiting", "stage", "gate")
    await connection.command("XADD", keys.key("gate:interactive"), "*", "request", encode(request))


async def results(connection: Connection) -> list[Result]:
    found = await connection.command("XRANGE", connection.keys.key("responses"), "-", "+")
    return [result_from_fields(fields) for _, fields in found]


async def _idle(connection: Connection, lane: str) -> bool:
    return int(await connection.command("XLEN", connection.keys.key(lane))) == 0


async def _in_flight(connection: Connection) -> int:
    budget = msgspec.msgpack.decode(
        await connection.command("GET", connection.keys.key(f"budget:{POOL.deployments[0].name}"))
    )
    return int(budget.get("in_flight", 0))


@pytest.mark.parametrize("lane", ["premium", "edge"])
async def test_one_is_closed_and_its_neighbours_go_on(
    redis_url: str, keys: Keys, connection: Connection, lane: str
) -> None:
    """A cancelled call is closed; calls beside it aren't, and its entry, grant and place are free."""
    stage = _Slow(lane)
    async with working(redis_url, keys, stage):
        for name in ("a", "b"):
            await claimed(connection, name, simple=lane == "edge")
        await eventually(lambda: stage.running == {"a", "b"}, 10)

        assert [result and result.status for result in await cancel(connection, ["a"])] == ["cancelled"]

        await eventually(lambda: stage.closed == ["a"], 1)
        assert stage.running == {"b"}
        assert [result.id for result in await results(connection)] == ["a"]
        if lane == "premium":
            await eventually(lambda: _one_in_flight(connection), 5)
        await cancel(connection, ["b"])
        await eventually(lambda: _idle(connection, lane), 5)
    assert [(result.id, result.status) for result in await results(connection)] == [
        ("a", "cancelled"),
        ("b", "cancelled"),
    ]


async def _one_in_flight(connection: Connection) -> bool:
    return await _in_flight(connection) == 1


@pytest.mark.parametrize("lane", ["premium", "edge"])
async def test_a_deadline_passes_while_a_call_runs(
    redis_url: str, keys: Keys, connection: Connection, lane: str
) -> None:
    """At the deadline the call is closed and the request answered as expired; one with more time goes on."""
    stage = _Slow(lane)
    async with working(redis_url, keys, stage) as store:
        await claimed(connection, "later", simple=lane == "edge", deadline_ms=round(store.now_ms()) + 60_000)
        deadline_ms = round(store.now_ms()) + 2500
        await claimed(connection, "soon", simple=lane == "edge", deadline_ms=deadline_ms)
        await eventually(lambda: stage.running == {"soon", "later"}, 2.4)

        await eventually(lambda: stage.closed == ["soon"], 5)

        assert -10 < store.now_ms() - deadline_ms < 1000
        await eventually(lambda: _answered(connection, 1), 5)
        (result,) = await results(connection)
        assert (result.id, result.status, result.code, result.route) == ("soon", "expired", "deadline_exceeded", lane)
        assert 0 <= result.waited_ms <= result.total_ms
        assert stage.running == {"later"}
        await cancel(connection, ["later"])
        await eventually(lambda: _idle(connection, lane), 5)


async def _answered(connection: Connection, count: int) -> bool:
    return len(await results(connection)) == count


async def test_what_was_missed_is_heard_later(redis_url: str, keys: Keys, connection: Connection) -> None:
    """A worker whose connection breaks hears of what was cancelled meanwhile as soon as it is back."""
    stage = _Slow("edge")
    async with working(redis_url, keys, stage):
        await claimed(connection, "a", simple=True)
        await eventually(lambda: stage.running == {"a"}, 10)
        for _ in range(3):
            await eventually(lambda: _cut_off(connection), 5)
        await cancel(connection, ["a"])

        await eventually(lambda: stage.closed == ["a"], 5)

        await eventually(lambda: _idle(connection, "edge"), 5)


async def _cut_off(connection: Connection) -> bool:
    """Kill the connections that wait for cancellations; whether there was one."""
    clients = (await connection.redis.client_list()) or []
    listening = [client["id"] for client in clients if client["cmd"] == "xread"]
    for number in listening:
        await connection.redis.client_kill_filter(_id=number)
    return bool(listening)


async def test_those_that_wait_for_a_slot_are_not_called_for(
    redis_url: str, keys: Keys, connection: Connection
) -> None:
    """What was cancelled before its turn at the local model came is dropped, also by a worker that starts later."""
    await claimed(connection, "a", simple=True)
    await cancel(connection, ["a"])
    request = Request(id="a", body=msgspec.Raw(b"{}"), simple=True, edge=True)
    stage = _Slow("edge")
    async with working(redis_url, keys, stage) as store:
        await eventually(lambda: store.cancelled.holds(request), 5)
        await connection.command("XADD", keys.key("edge"), "*", "request", encode(request))

        await eventually(lambda: _idle(connection, "edge"), 5)

    assert stage.closed == []
    assert len(await results(connection)) == 1


async def test_after_its_deadline_the_local_model_is_not_called(
    redis_url: str, keys: Keys, connection: Connection
) -> None:
    """A request whose deadline passed while it waited for a slot of the local model is answered, and not called for."""
    request = Request(id="a", body=msgspec.Raw(b"{}"), simple=True, edge=True, deadline_ms=1)
    await connection.command("XADD", keys.key("edge"), "*", "request", encode(request))
    stage = _Slow("edge")
    async with working(redis_url, keys, stage):
        await eventually(lambda: _idle(connection, "edge"), 5)

    assert stage.closed == []
    assert [(result.status, result.code) for result in await results(connection)] == [("expired", "deadline_exceeded")]


async def test_an_id_may_be_used_again_once_it_is_forgotten(redis_url: str, keys: Keys, connection: Connection) -> None:
    """When a cancelled request's status has expired, a new request with its id is called for like any other."""
    await claimed(connection, "a", simple=True)
    await cancel(connection, ["a"])
    stage = _Slow("edge")
    async with working(redis_url, keys, stage) as store:
        await eventually(lambda: _idle(connection, "gate:interactive"), 5)
        former = Request(id="a", body=msgspec.Raw(b"{}"))
        await eventually(lambda: store.cancelled.holds(former), 5)
        await connection.command("DEL", keys.status("a"))

        again = msgspec.structs.replace(former, simple=True, edge=True, entered_ms=round(store.now_ms()) + 1)
        await connection.command("XADD", keys.key("edge"), "*", "request", encode(again))
        await eventually(lambda: stage.running == {"a"}, 5)

        assert not store.cancelled.holds(again)
        await connection.command("HSET", keys.status("a"), "entry", "ingest 1-1", "state", "waiting", "stage", "edge")
        await eventually(lambda: store.now_ms() > again.entered_ms, 5)
        await cancel(connection, ["a"])
        await eventually(lambda: stage.closed == ["a"], 2)
        await eventually(lambda: _idle(connection, "edge"), 5)
