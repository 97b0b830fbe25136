"""The stage loop is cancelled wherever it stands: it ends, and every entry is either done or still there."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from pipeline.answer import failed
from pipeline.config import Edge, Pool
from pipeline.loop import LoopSettings, StageLoop
from pipeline.message import Request, encode
from pipeline.metrics import Metrics
from pipeline.outcome import Done, Forward, Outcome
from pipeline.stage import Delivery
from pipeline.store import Store
from tests.support import eventually
from tokenweir.connection import Connection
from tokenweir.errors import StoreUnavailable
from tokenweir.keys import Keys

STEPS = range(61)
# A turn of the event loop is short beside a round trip: so many are one step.
TURNS = 10
# More than the hands hold, so that some of what comes is read and some isn't.
ENTRIES = 6


class _Stub:
    """A stage that decides after a few turns."""

    calls = False
    longest_s = 0.0
    ready = True
    concurrency = 4

    def __init__(self, name: str, lanes: tuple[str, ...]) -> None:
        self.name, self.lanes = name, lanes

    async def handle(self, delivery: Delivery) -> Outcome:
        for _ in range(3):
            await asyncio.sleep(0)
        if self.name == "edge":
            return Done(result=failed(delivery.request, "internal", "a stub"))
        request = Request(id=delivery.entry_id, body=msgspec.Raw(b"{}"))
        return Forward(request=request, to="gate:interactive", claims=True)

    async def run(self, stop: asyncio.Event) -> None:
        await stop.wait()

    async def aclose(self) -> None:
        """Nothing was opened."""


def _stage_loop(stage: _Stub, store: Store, *, lease_s: float) -> StageLoop:
    settings = LoopSettings(lease_s=lease_s, drain_s=1, max_deliveries=3, max_attempts=3)
    return StageLoop(stage, store, Metrics("main", []), settings)


@pytest.mark.anyio
@pytest.mark.leaves_keys("requests are left in the middle of their way")
@pytest.mark.parametrize(("name", "lanes", "target"), [
    ("classify", ("ingest", "ingest:batch"), "gate:interactive"),
    ("edge", ("edge",), "responses"),
])  # fmt: skip
@pytest.mark.parametrize("how", ["cancelled", "stopped"])
async def test_the_loop_can_end_at_any_step(
    redis_url: str, keys: Keys, connection: Connection, name: str, lanes: tuple[str, ...], target: str, how: str
) -> None:
    """Cancelled or stopped after any number of steps the loop ends, and what it held is done once or taken up."""
    stage, pool, added, met = _Stub(name, lanes), Pool(edge=Edge()), 0, set()
    for steps in STEPS:
        for _ in range(ENTRIES):
            added += 1
            request = encode(Request(id=f"r{added}", body=msgspec.Raw(b"{}")))
            await connection.command("XADD", keys.key(lanes[0]), "*", "request", request)
        store, stop = Store(redis_url, keys, pool), asyncio.Event()
        running = asyncio.create_task(_stage_loop(stage, store, lease_s=30).run(stop))
        for _ in range(steps * TURNS):
            await asyncio.sleep(0)

        if how == "cancelled":
            running.cancel()
        else:
            stop.set()
        done, _ = await asyncio.wait([running], timeout=5)

        assert done, f"it doesn't end after {steps} steps"
        assert running.cancelled() is (how == "cancelled")
        await store.aclose()
        assert await _left(connection, lanes) + await connection.command("XLEN", keys.key(target)) == added
        met.add((await _in_hand(connection, lanes[0], name), await connection.command("XLEN", keys.key(target))))

    # The sweep went from before the first read to behind the last settlement, with work in hand between.
    assert len({finished for _, finished in met}) > 2
    assert how == "stopped" or any(held for held, _ in met)
    store, stop = Store(redis_url, keys, pool), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(_stage_loop(stage, store, lease_s=0.2).run(stop))
        await eventually(lambda: _empty(connection, lanes), 20, why="what was in hand isn't taken up")
        stop.set()
    await store.aclose()
    assert await connection.command("XLEN", keys.key(target)) == added
    assert await connection.command("XLEN", keys.key("dead")) == 0


async def _left(connection: Connection, lanes: tuple[str, ...]) -> int:
    return sum([await connection.command("XLEN", connection.keys.key(lane)) for lane in lanes])


async def _in_hand(connection: Connection, lane: str, group: str) -> int:
    """Entries that a loop has read and not settled."""
    try:
        return int((await connection.command("XPENDING", connection.keys.key(lane), group))["pending"])
    except StoreUnavailable:  # ended before the group was made
        return 0


async def _empty(connection: Connection, lanes: tuple[str, ...]) -> bool:
    return await _left(connection, lanes) == 0
