"""Stage loops in the test's own process, on a real server: a stage that the test steers, and what it holds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec

from pipeline.answer import failed
from pipeline.config import Edge, Pool
from pipeline.loop import LoopSettings, StageLoop
from pipeline.message import Request, encode
from pipeline.metrics import Metrics
from pipeline.outcome import Done, Outcome
from pipeline.stage import Delivery
from pipeline.store import Store
from tokenweir.connection import Connection
from tokenweir.errors import StoreUnavailable
from tokenweir.keys import GROUPS, Keys

Handle = Callable[[Delivery], Awaitable[Outcome]]


async def answer(delivery: Delivery) -> Outcome:
    """A typed error that names who answered."""
    return Done(result=failed(delivery.request, "internal", "an answer"))


class Steered:
    """A stage whose decisions are the test's: by default each request is answered at once."""

    calls = False
    ready = True

    def __init__(
        self, handle: Handle = answer, *, name: str = "edge", concurrency: int = 4, longest_s: float = 60.0
    ) -> None:
        self.name, self.concurrency, self.longest_s = name, concurrency, longest_s
        self.lanes = tuple(lane for lane, group in GROUPS.items() if group == name)
        self.handled: list[str] = []  # ids in the order in which they came
        self._handle = handle

    async def handle(self, delivery: Delivery) -> Outcome:
        self.handled.append(delivery.request.id if b"request" in delivery.fields else delivery.entry_id)
        return await self._handle(delivery)

    async def run(self, stop: asyncio.Event) -> None:
        """Nothing to do beside deliveries."""

    async def aclose(self) -> None:
        """Nothing was opened."""


class Running:
    """A loop at work."""

    def __init__(self, store: Store, stage: Steered, task: asyncio.Task[None], stop: asyncio.Event) -> None:
        self.store, self.stage, self.task, self._stop = store, stage, task, stop

    @property
    def consumer(self) -> str:
        """Its name in Redis."""
        return self.store.consumer

    async def stop(self) -> None:
        """Tell it to stop, and wait until it has."""
        self._stop.set()
        await asyncio.wait([self.task])


@asynccontextmanager
async def running(
    url: str, keys: Keys, stage: Steered, *, lease_s: float = 30.0, drain_s: float = 1.0
) -> AsyncIterator[Running]:
    """A loop that runs `stage` until the block ends; a failure of it is a failure of the test."""
    store, stop = Store(url, keys, Pool(edge=Edge())), asyncio.Event()
    settings = LoopSettings(lease_s=lease_s, drain_s=drain_s, max_deliveries=3, max_attempts=3)
    loop = StageLoop(stage, store, Metrics("main", []), settings)
    await store.streams.make_groups(stage.lanes)
    task = asyncio.create_task(loop.run(stop))
    try:
        yield Running(store, stage, task, stop)
        stop.set()
        await task
    finally:
        task.cancel()
        await asyncio.wait([task])
        await store.aclose()


async def add(connection: Connection, *ids: str, lane: str = "edge") -> list[str]:
    """Requests on a stream; returns their entries."""
    requests = [encode(Request(id=id_, body=msgspec.Raw(b"{}"))) for id_ in ids]
    added = [await connection.command("XADD", connection.keys.key(lane), "*", "request", raw) for raw in requests]
    return [entry.decode() for entry in added]


async def abandon(
    connection: Connection, *ids: str, deliveries: int = 1, idle_s: float = 60.0, lane: str = "edge"
) -> list[str]:
    """Requests that a worker took, that often, and left: nobody has given a sign of life for `idle_s`."""
    entries = await add(connection, *ids, lane=lane)
    await take(connection, "dead", count=len(ids), lane=lane)
    await claim(connection, "dead", entries, lane=lane, idle=round(idle_s * 1000), retrycount=deliveries)
    return entries


async def claim(
    connection: Connection, consumer: str, entries: Sequence[str], *, lane: str = "edge", **more: int
) -> None:
    """Have `consumer` hold these entries, without a delivery."""
    key, ids = connection.keys.key(lane), list(entries)
    await connection.redis.xclaim(key, GROUPS[lane], consumer, 0, ids, justid=True, **more)  # type: ignore[arg-type]


async def take(connection: Connection, consumer: str, *, count: int, lane: str = "edge") -> None:
    """Read entries as `consumer` would, and do nothing with them."""
    key, group = connection.keys.key(lane), GROUPS[lane]
    with suppress(StoreUnavailable):  # it is there already
        await connection.command("XGROUP", "CREATE", key, group, "0", "MKSTREAM")
    await connection.command("XREADGROUP", "GROUP", group, consumer, "COUNT", count, "STREAMS", key, ">")


async def held(connection: Connection, lane: str = "edge") -> dict[str, tuple[str, int]]:
    """Who holds each entry of a stream, and its deliveries."""
    key, group = connection.keys.key(lane), GROUPS[lane]
    found: Any = await connection.redis.xpending_range(key, group, min="-", max="+", count=1000)
    return {about["message_id"].decode(): (about["consumer"].decode(), about["times_delivered"]) for about in found}


async def results(connection: Connection) -> dict[str, str]:
    """The code of each result, by request id; one that came twice fails."""
    found: dict[str, str] = {}
    for _, fields in await connection.command("XRANGE", connection.keys.key("responses"), "-", "+"):
        assert fields[b"id"].decode() not in found
        found[fields[b"id"].decode()] = fields[b"code"].decode()
    return found


async def consumers(connection: Connection, lane: str = "edge") -> Sequence[str]:
    """The consumers that a group lists."""
    found = await connection.command("XINFO", "CONSUMERS", connection.keys.key(lane), GROUPS[lane])
    return [about[b"name"].decode() for about in found]
