"""What operators look at and put back to work: entries in hand, and the limits in force.

Reading changes nothing. A replayed entry keeps its request id, its attempt and its deliveries.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from lua import Script, load
from pipeline.store.answers import Answers
from pipeline.store.letters import Letters
from tokenweir.connection import Argument, Connection, connect
from tokenweir.errors import StoreUnavailable
from tokenweir.keys import GROUPS, Keys
from tokenweir.terms import Terms

_PENDING, _RELEASE = load("entries_pending"), load("entries_release")
_SET, _RESUME, _COUNT = load("limits_set"), load("budgets_resume"), load("pool_count")
_PAGE = 500
# Who holds a replayed entry in name until a worker takes it over.
OPERATOR = "operator"
_REQUEST_ID = re.compile(rb'\{"id":("(?:[^"\\]|\\.)*")')


class Pending(msgspec.Struct, frozen=True):
    """An entry in hand. `request` is empty for notices and for entries that can't be read."""

    stage: str
    stream: str
    entry: str
    request: str
    owner: str
    idle_s: float
    deliveries: int


class LimitsView(msgspec.Struct, frozen=True):
    """The limits as they stand in Redis, by deployment; version 0 = no worker has put any there yet."""

    version: int
    deployments: dict[str, Terms]


class Count(msgspec.Struct, frozen=True):
    """What a pool holds at one moment, and what was ever added to its ends.

    Attributes:
        held: unfinished requests, in hand or not, by stream; those of the backlog as `backlog`.
        came_in, answered, died: entries ever added to the ingest lanes, to `responses`, and to `dead`.
    """

    held: dict[str, int]
    came_in: int
    answered: int
    died: int
    closed: bool

    @property
    def total(self) -> int:
        """All unfinished requests."""
        return sum(self.held.values())


class Views:
    """One pool, as its operators see it."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.answers = Answers(connection)
        self.letters = Letters(connection)
        self._closed = connection.keys.key("closed")

    async def pending(self, streams: Sequence[str], *, min_idle_s: float) -> list[Pending]:
        """Entries in hand for at least `min_idle_s` since their owner's last sign of life, oldest first by stream."""
        found: list[Pending] = []
        for stream in streams:
            start = "-"
            while True:
                args: list[Argument] = [GROUPS[stream], round(min_idle_s * 1000), start, _PAGE]
                rows = await self._run_on(stream, _PENDING, args)
                found += [_pending(stream, row) for row in rows]
                if len(rows) < _PAGE:
                    break
                start = "(" + found[-1].entry
        return found

    async def release(self, entries: Sequence[Pending], *, idle_s: float) -> list[Pending]:
        """Let the next worker that looks for abandoned entries take these; returns those that were let go.

        An entry whose owner changed since it was seen stays where it is.

        Args:
            idle_s: how long they shall count as abandoned; beyond the lease.
        """
        released: list[Pending] = []
        for stream, owner in dict.fromkeys((entry.stream, entry.owner) for entry in entries):
            held = {entry.entry: entry for entry in entries if (entry.stream, entry.owner) == (stream, owner)}
            # One delivery back: the one that the replay causes is not held against the entry.
            args: list[Argument] = [GROUPS[stream], OPERATOR, round(idle_s * 1000), owner, 1, *held]
            released += [held[entry.decode()] for entry in await self._run_on(stream, _RELEASE, args)]
        return released

    async def close(self, by: str) -> bool:
        """Have the pool take nothing in until `open`; False = it was drained already, by whom stays as it was."""
        seconds, _ = await self.connection.command("TIME")
        return bool(await self.connection.command("SET", self._closed, f"{int(seconds)} {by}", "NX"))

    async def open(self) -> bool:
        """Have a drained pool take requests in again; False = it was open."""
        return bool(await self.connection.command("DEL", self._closed))

    async def count(self) -> Count:
        """What the pool holds."""
        flat, came_in, answered, died, closed = await self.connection.run(_COUNT)
        held = {name.decode(): int(length) for name, length in zip(flat[::2], flat[1::2], strict=True)}
        return Count(held, int(came_in), int(answered), int(died), bool(closed))

    async def limits(self) -> LimitsView:
        """The limits in force.

        Raises:
            StoreUnavailable: Redis didn't answer, or what stands there isn't ours.
        """
        flat: dict[bytes, bytes] = await self.connection.command("HGETALL", self.connection.keys.key("limits"))
        try:
            terms = {
                name.decode(): msgspec.json.decode(text, type=Terms) for name, text in flat.items() if b"@" not in name
            }
            return LimitsView(int(flat.get(b"@version", 0)), terms)
        except (ValueError, msgspec.DecodeError) as error:
            key = self.connection.keys.key("limits")
            raise StoreUnavailable(f"{key} holds something that isn't ours: {error}") from error

    async def put_limits(self, deployments: Mapping[str, Terms]) -> int:
        """Put these limits in force for all workers; returns their version, 0 = one has none yet, nothing was changed.

        Raises:
            StoreUnavailable: Redis didn't answer; doing it again is harmless.
        """
        args: list[Argument] = []
        for name, terms in deployments.items():
            args += (name, msgspec.json.encode(terms))
        return int(await self.connection.run(_SET, args))

    async def resume(self, deployments: Sequence[str]) -> list[str]:
        """End their pauses, and use their whole rate again; returns those that were paused or narrowed."""
        reply = await self.connection.run(_RESUME, rest=[f"budget:{name}" for name in deployments])
        return [name.decode() for name in reply]

    async def _run_on(self, stream: str, script: Script, args: Sequence[Argument]) -> Any:
        return await self.connection.run(script, args, bind={"<source>": self.connection.keys.key(stream)})


@asynccontextmanager
async def opened(url: str, keys: Keys) -> AsyncIterator[Views]:
    """Views on the pool of `keys` for the length of the block."""
    connection = Connection(connect(url, max_connections=2), keys)
    try:
        yield Views(connection)
    finally:
        await connection.aclose()


def _pending(stream: str, row: Sequence[bytes]) -> Pending:
    entry, owner, idle_ms, deliveries, own_id, request = row
    name = entry.decode()
    if GROUPS[stream] == "classify":
        request_id = own_id.decode(errors="replace") or name
    else:
        found = _REQUEST_ID.match(request)
        request_id = msgspec.json.decode(found[1], type=str) if found else ""
    return Pending(
        GROUPS[stream], stream, name, request_id, owner.decode(errors="replace"), int(idle_ms) / 1000, int(deliveries)
    )
