"""A worker that was kept from a granted call doesn't make it, and nobody pays for it."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from pipeline.answer import failed
from pipeline.config import Deployment, Pool
from pipeline.loop import LoopSettings, StageLoop
from pipeline.message import Request, encode
from pipeline.metrics import Metrics
from pipeline.outcome import Done, Late, Outcome
from pipeline.stage import Delivery
from pipeline.store import Store
from stages.deferred import Deferred
from stages.gate import GateStage
from tests.support import eventually
from tokenweir.connection import Connection
from tokenweir.keys import Keys

POOL = Pool(deployments=(Deployment(rpm=600, tpm=60_000, window_s=2, send_within_s=0.5),))


class _KeptBusy:
    """A premium stage whose process has no time for the first two calls it is granted."""

    name = "premium"
    lanes: tuple[str, ...] = ("premium",)
    concurrency = 4
    calls = True
    longest_s = 60.0
    ready = True

    def __init__(self) -> None:
        self.calls_by: list[float] = []

    async def handle(self, delivery: Delivery) -> Outcome:
        self.calls_by.append(delivery.call_by)
        if len(self.calls_by) <= 2:
            return Late(request=delivery.request)
        return Done(result=failed(delivery.request, "internal", "a stub"))

    async def run(self, stop: asyncio.Event) -> None:
        """Nothing beside."""

    async def aclose(self) -> None:
        """Nothing was opened."""


@pytest.mark.anyio
async def test_a_call_that_could_not_be_made_in_time_gets_another_grant(
    redis_url: str, keys: Keys, connection: Connection
) -> None:
    """Twice a grant is given back whole and granted anew: one result, one charge, still the first attempt."""
    store, stop, stage, metrics = (
        Store(redis_url, keys, POOL),
        asyncio.Event(),
        _KeptBusy(),
        Metrics("main", ["primary"]),
    )
    await store.gate.seed()
    await store.gate.beat(premium_slots=4, edge_slots=0, ttl_ms=60_000)
    request = Request(id="a", body=msgspec.Raw(b"{}"), prompt_tokens=60, output_tokens=40)
    await connection.command("XADD", keys.key("gate:interactive"), "*", "request", encode(request))
    settings = LoopSettings(lease_s=30, drain_s=1, max_deliveries=3, max_attempts=3)
    async with asyncio.TaskGroup() as group:
        for one in (GateStage(), stage, Deferred()):
            group.create_task(StageLoop(one, store, metrics, settings).run(stop))

        await eventually(lambda: connection.command("XLEN", keys.key("responses")), 10)
        stop.set()
    await store.aclose()

    now = asyncio.get_running_loop().time()
    assert len(stage.calls_by) == 3
    assert all(call_by < now + 0.5 for call_by in stage.calls_by)
    ((_, result),) = await connection.command("XRANGE", keys.key("responses"), "-", "+")
    budget = msgspec.msgpack.decode(await connection.command("GET", keys.key("budget:primary")))
    assert (result[b"attempt"], budget["granted"], budget["limits"]["tpm"]["used"]) == (b"1", 3, 100)
    labels = {"pool": "main", "deployment": "primary", "outcome": "given_back"}
    assert metrics.registry.get_sample_value("tokenweir_provider_calls_total", labels) == 2
