"""Work streams: reading with leases, and the hand-over of entries.

Every ending of an entry is one script, fenced and safe to repeat (lua/part_entry.lua).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple, cast

import msgspec

from lua import load
from pipeline.message import encode
from pipeline.outcome import Dead, Done, Failure, Forward, Retry
from pipeline.store.rows import request_rows, result_row
from tokenweir.connection import CALL_TIMEOUT_S, Argument, Connection
from tokenweir.keys import GROUPS
from tokenweir.wire import Result

_FORWARD, _FINISH, _BURY, _RETRY = (load(f"entries_{verb}") for verb in ("forward", "finish", "bury", "retry"))
_RECLAIM, _RELEASE = load("entries_reclaim"), load("entries_release")
_OWN, _COUNT = load("entries_own"), load("entries_count")
_RENEW, _PRUNE, _GROUP = load("leases_renew"), load("consumers_prune"), load("groups_make")


class Entry(NamedTuple):
    """An entry as it was read: its stream, id, fields, and how often it has been delivered."""

    lane: str
    id: str
    fields: dict[bytes, bytes]
    deliveries: int = 1


class Reclaimed(NamedTuple):
    """What a look for abandoned entries brought: where to look on, what was taken, how many had lost their body."""

    cursor: str
    entries: list[Entry]
    lost: int


class Ended(NamedTuple):
    """What a terminal result did: whether it was the first, and which tokens its grant got back."""

    first: bool
    prompt: int
    output: int


def _failure(failure: Failure | None) -> tuple[Argument, ...]:
    """How a call ended, for its deployment: us of a pause (-1 = it was answered), why, for its rate."""
    if failure is None:
        return (-1, "", 0)
    return (round(failure.pause_s * 1e6), failure.reason, int(failure.limited))


def _fields(flat: Sequence[bytes]) -> dict[bytes, bytes]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


class Retention(NamedTuple):
    """What stays: a status for so long after its result; so many results and dead letters, for so many seconds."""

    status_ttl_s: int
    responses: tuple[int, int]
    dead: tuple[int, int]


class Streams:
    """The work streams of one pool, for one consumer."""

    def __init__(
        self,
        connection: Connection,
        *,
        consumer: str,
        deployments: Sequence[str],
        window_s: float,
        retention: Retention,
    ) -> None:
        self._connection = connection
        self._keys = connection.keys
        self._budgets = [f"budget:{name}" for name in deployments]
        self._window_s = window_s
        self._retention = retention
        self._kept: tuple[Argument, Argument] = (retention.responses[0], retention.status_ttl_s)
        self.consumer = consumer

    async def make_groups(self, lanes: Sequence[str]) -> int:
        """Make the group of each lane, from its first entry on; returns how many were missing."""
        return sum([await self._connection.run(_GROUP, [GROUPS[lane]], bind=self._source(lane)) for lane in lanes])

    async def read(
        self, reader: Connection, lanes: Sequence[str], *, count: int, block_ms: int | None = None
    ) -> list[Entry]:
        """Take up to `count` new entries of each lane, in the lanes' order.

        Waits up to `block_ms` for the first one; None doesn't wait. Never cancel it: what Redis has handed
        out by then would stay pending, unseen.
        """
        words: list[Argument] = ["XREADGROUP", "GROUP", GROUPS[lanes[0]], self.consumer, "COUNT", count]
        if block_ms is not None:
            words += ("BLOCK", block_ms)
        words += ("STREAMS", *(self._keys.key(lane) for lane in lanes), *([">"] * len(lanes)))
        reply = await reader.command(*words, timeout_s=CALL_TIMEOUT_S + (block_ms or 0) / 1000)
        names = {self._keys.key(lane).encode(): lane for lane in lanes}
        streams = cast("list[tuple[bytes, list[tuple[bytes, dict[bytes, bytes] | None]]]]", reply or [])
        return [Entry(names[key], id_.decode(), fields or {}) for key, found in streams for id_, fields in found]

    async def own(self, lanes: Sequence[str], *, count: int) -> list[Entry]:
        """What is pending under our name, up to `count` of each lane, the oldest first; no delivery is counted."""
        found = []
        for lane in lanes:
            reply = await self._connection.run(_OWN, [GROUPS[lane], self.consumer, count], bind=self._source(lane))
            found += [Entry(lane, id_.decode(), _fields(flat)) for id_, flat in reply]
        return found

    async def forward(self, lane: str, rows: Sequence[tuple[str, Forward]]) -> list[bytes]:
        """Hand entries over: (entry id, outcome) each; answers `moved`, `gone` or `repeat`."""
        targets = sorted({outcome.to for _, outcome in rows})
        args: list[Argument] = [GROUPS[lane]]
        for entry_id, outcome in rows:
            request, claims = outcome.request, int(outcome.claims)
            index = targets.index(outcome.to) + 1
            args += (entry_id, request.id, request.replay, claims, request.reply_to)
            args += (int(request.stream), bytes(request.metadata), index, encode(request))
        touches = (self._keys.status(outcome.request.id) for _, outcome in rows)
        reply = await self._connection.run(_FORWARD, args, bind=self._source(lane), rest=targets, touches=touches)
        return cast("list[bytes]", reply)

    async def finish(self, lane: str, rows: Sequence[tuple[str, Done]]) -> list[Ended]:
        """Write terminal results and settle their grants."""
        args: list[Argument] = [GROUPS[lane], *self._kept]
        for entry_id, done in rows:
            args += (entry_id, done.result.attempt, *(done.used or (-1, -1)), *_failure(done.failure))
            args += result_row(done.result, streamed=done.stream)
        touches = chain(
            (self._keys.status(done.result.id) for _, done in rows),
            (self._keys.reply(done.result.id) for _, done in rows if done.stream),
        )
        bind = self._source(lane)
        reply = await self._connection.run(_FINISH, args, bind=bind, rest=self._budgets, touches=touches)
        return [
            Ended(bool(first), prompt, output)
            for first, prompt, output in zip(reply[::3], reply[1::3], reply[2::3], strict=True)
        ]

    async def bury(self, lane: str, rows: Sequence[tuple[Entry, Dead, Result]], *, at_ms: int) -> list[bool]:
        """Move entries to `dead` and answer their callers; True = it was still ours."""
        args: list[Argument] = [GROUPS[lane], *self._kept, lane, self._retention.dead[0]]
        for entry, dead, result in rows:
            args += (entry.id, entry.deliveries, dead.reason, dead.message, at_ms, result.attempt)
            args += result_row(result, streamed=False)
        touches = (self._keys.status(result.id) for _, _, result in rows)
        bind = self._source(lane)
        reply = await self._connection.run(_BURY, args, bind=bind, rest=self._budgets, touches=touches)
        return [bool(buried) for buried in reply]

    async def retry(self, lane: str, rows: Sequence[tuple[str, str, Retry]]) -> int:
        """Put failed attempts into the backlog, each (entry id, deployment, outcome) with its due time."""
        failures: list[Argument] = []
        for _, deployment, retry in rows:
            failures += (deployment, round(retry.wait_s * 1e6), *_failure(retry.failure))
        requests = request_rows(((id_, retry.request) for id_, _, retry in rows), window_s=self._window_s)
        args = [GROUPS[lane], msgspec.msgpack.encode(failures), *requests]
        touches = (self._keys.status(retry.request.id) for _, _, retry in rows)
        bind = self._source(lane)
        return int(await self._connection.run(_RETRY, args, bind=bind, rest=self._budgets, touches=touches))

    async def renew(self, lane: str, entry_ids: Sequence[str]) -> list[str]:
        """Renew leases; returns the entries that are no longer ours."""
        lost = await self._connection.run(_RENEW, [GROUPS[lane], self.consumer, *entry_ids], bind=self._source(lane))
        return [entry.decode() for entry in lost]

    async def reclaim(self, lane: str, *, lease_ms: int, cursor: str, count: int) -> Reclaimed:
        """Take over entries whose owner gave no sign of life for a lease.

        `deliveries` counts the one that is about to begin; Redis counts it for first deliveries only, see
        `count_delivery`.
        """
        args: list[Argument] = [GROUPS[lane], self.consumer, lease_ms, cursor, count]
        next_cursor, taken, lost = await self._connection.run(_RECLAIM, args, bind=self._source(lane))
        entries = [Entry(lane, id_.decode(), _fields(flat), int(deliveries)) for id_, deliveries, flat in taken]
        return Reclaimed(next_cursor.decode(), entries, len(lost))

    async def count_delivery(self, entry: Entry) -> bool:
        """Count the delivery of a reclaimed entry as it begins; False = it is no longer ours."""
        args: list[Argument] = [GROUPS[entry.lane], self.consumer, entry.id, entry.deliveries]
        return bool(await self._connection.run(_COUNT, args, bind=self._source(entry.lane)))

    async def release(
        self, lane: str, entry_ids: Sequence[str], *, idle_ms: int, owner: str = "", to: str = "", back: int = 0
    ) -> list[str]:
        """Make pending entries free for the next reclaim at once; returns those that were.

        Args:
            owner: only entries that this consumer holds. to: who holds them in name meanwhile.
            back: deliveries to take back, so that a hand-back uses up none.
        """
        args: list[Argument] = [GROUPS[lane], to or self.consumer, idle_ms, owner, back, *entry_ids]
        return [entry.decode() for entry in await self._connection.run(_RELEASE, args, bind=self._source(lane))]

    async def expire(self, *, now_ms: float) -> None:
        """Drop results and dead letters that are older than they are kept."""
        ages = {"responses": self._retention.responses[1], "dead": self._retention.dead[1]}
        await self._connection.commands(
            [("XTRIM", self._keys.key(name), "MINID", round(now_ms - age_s * 1000)) for name, age_s in ages.items()]
        )

    async def prune(self, lane: str, *, leaving: bool, idle_ms: int) -> int:
        """Remove consumers that hold nothing and have been idle for long, and, when `leaving`, our own."""
        args: list[Argument] = [GROUPS[lane], self.consumer if leaving else "", idle_ms]
        return int(await self._connection.run(_PRUNE, args, bind=self._source(lane)))

    def _source(self, lane: str) -> dict[str, str]:
        return {"<source>": self._keys.key(lane)}
