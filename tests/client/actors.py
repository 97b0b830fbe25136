"""A worker's part played by hand through the real scripts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from pipeline.config import Pool
from pipeline.intake import read_entry
from pipeline.message import Request, decode
from pipeline.outcome import Done, Forward
from pipeline.store import Entry, Gate, Retention, Streams
from tests.support import eventually
from tokenweir import Client, TokenweirError
from tokenweir.connection import Connection
from tokenweir.keys import INGEST_LANES
from tokenweir.wire import Result


class Worker:
    """Does what stages do, one step at a time, when the test says so."""

    def __init__(self, connection: Connection) -> None:
        self.pool = Pool()
        self.connection = connection
        self.keys = connection.keys
        kept = Retention(status_ttl_s=60, responses=(10_000, 60), dead=(100, 60))
        self.streams = Streams(connection, consumer="w", deployments=["default"], window_s=60, retention=kept)
        self.gate = Gate(
            connection,
            consumer="w",
            deployments=self.pool.deployments,
            edge_queue=0,
            max_waiting=100_000,
            status_ttl_s=60,
            responses_kept=10_000,
        )

    async def take(self, *, count: int = 1000) -> list[Entry]:
        """What stands in the ingest streams."""
        await self.streams.make_groups(INGEST_LANES)
        return await self.streams.read(self.connection, INGEST_LANES, count=count)

    def request(self, entry: Entry) -> Request:
        """The entry as the engine reads it."""
        entered_ms = int(entry.id.partition("-")[0])
        return read_entry(entry.fields, entry_id=entry.id, entered_ms=entered_ms, pool=self.pool, keys=self.keys)

    async def answer(self, entry: Entry, content: str = "Tomorrow.", **more: Any) -> None:
        """Write the terminal result of an ingest entry."""
        fields = {"id": self.request(entry).id, "status": "ok", "content": content, **more}
        assert await self.streams.finish(entry.lane, [(entry.id, Done(result=Result(**fields)))]) == [(True, 0, 0)]

    async def answer_all(self) -> list[str]:
        """Answer whatever has come in with its own id; returns the ids."""
        entries = await self.take()
        for entry in entries:
            await self.answer(entry, self.request(entry).id)
        return [self.request(entry).id for entry in entries]

    async def defer(self) -> None:
        """Let everything through to the gate, which has no slots to give: it waits in the backlog."""
        await self.gate.seed()
        for entry in await self.take():
            request = self.request(entry)
            lane = f"gate:{request.priority}"
            await self.streams.make_groups([lane])
            await self.streams.forward(entry.lane, [(entry.id, Forward(request=request, to=lane, claims=True))])
            for moved in await self.streams.read(self.connection, [lane], count=1):
                await self.gate.admit([(moved.id, decode(moved.fields[b"request"]))])


Open = Callable[..., Client]


def plain(result: Result) -> dict[str, Any]:
    """A result as values that can be compared."""
    return result.json() | {"body": msgspec.json.decode(result.body), "metadata": msgspec.json.decode(result.metadata)}


async def waited_for(worker: Worker, request_id: str, *, by: int = 1) -> None:
    """Return once so many inboxes wait for the request."""

    async def waiting() -> bool:
        inboxes = await worker.connection.command("HGET", worker.keys.status(request_id), "inbox")
        return len((inboxes or b"").split()) == by

    await eventually(waiting)


async def failure(client: Client, request_id: str) -> TokenweirError | None:
    """What waiting for the request raised, if anything."""
    try:
        await client.result(request_id)
    except TokenweirError as error:
        return error
    return None
