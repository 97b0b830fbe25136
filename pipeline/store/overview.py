"""A pool at a glance: queues, backlog, budgets, slots. Read in two round trips, changes nothing."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from pipeline.limits import Limit, Terms
from tokenweir.connection import Argument, Connection
from tokenweir.keys import CLASSES, GROUPS


class Queue(msgspec.Struct, frozen=True):
    """A work stream: entries that nobody has taken, entries in hand, age of the oldest (s), consumers."""

    stream: str
    waiting: int
    pending: int
    oldest_s: float
    consumers: int


class Level(msgspec.Struct, frozen=True):
    """One limit of one deployment now: bucket level by capacity, charged in the window by what is allowed."""

    deployment: str
    limit: str
    level: float
    capacity: float
    used: int
    allowed: int


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """What operators look at first. `paused_s` > 0: that deployment is closed for so long."""

    queues: list[Queue]
    backlog: dict[str, int]
    due_later: int
    budgets: list[Level]
    paused_s: dict[str, float]
    workers: int
    premium_slots: int
    edge_slots: int
    edge_alive: bool
    dead: int
    responses: int
    limits_version: int


async def overview(connection: Connection) -> Overview:
    """The pool as it stands.

    Raises:
        StoreUnavailable: Redis didn't answer.
    """
    key = connection.keys.key
    words: list[tuple[Argument, ...]] = [("TIME",), ("HGETALL", key("limits")), ("HGETALL", key("slots"))]
    words += [("EXISTS", key("edge:alive")), ("XLEN", key("dead")), ("XLEN", key("responses"))]
    words += [("ZCARD", key(f"backlog:{name}")) for name in (*CLASSES, "due")]
    words += [("XLEN", key(lane)) for lane in GROUPS]
    words += [("XRANGE", key(lane), "-", "+", "COUNT", 1) for lane in GROUPS]
    time, limits, slots, alive, dead, responses, *rest = await connection.commands(words)
    now_us = int(time[0]) * 1_000_000 + int(time[1])
    backlog, lengths, firsts = rest[:4], rest[4 : 4 + len(GROUPS)], rest[4 + len(GROUPS) :]

    terms = {name.decode(): msgspec.json.decode(text, type=Terms) for name, text in _pairs(limits) if b"@" not in name}
    present = [lane for lane, length, first in zip(GROUPS, lengths, firsts, strict=True) if length or first]
    more: list[tuple[Argument, ...]] = [("HGETALL", key(f"budget:{name}")) for name in terms]
    more += [("XINFO", "GROUPS", key(lane)) for lane in present]
    replies = await connection.commands(more) if more else []
    flats = [dict(_pairs(flat)) for flat in replies[: len(terms)]]
    pending = dict(zip(present, (_group(reply) for reply in replies[len(terms) :]), strict=True))

    offers = [tuple(map(int, text.split())) for _, text in _pairs(slots)]
    live = [offer for offer in offers if offer[2] > now_us]
    return Overview(
        queues=[
            _queue(lane, length, first, pending.get(lane, (0, 0)), now_us)
            for lane, length, first in zip(GROUPS, lengths, firsts, strict=True)
        ],
        backlog=dict(zip(CLASSES, backlog, strict=False)),
        due_later=backlog[3],
        budgets=[
            _level(name, limit, flat, now_us)
            for (name, term), flat in zip(terms.items(), flats, strict=True)
            for limit in term.limits
        ],
        paused_s={
            name: max(0.0, (int(flat.get(b"pause_until", 0)) - now_us) / 1e6)
            for name, flat in zip(terms, flats, strict=True)
        },
        workers=len(live),
        premium_slots=sum(offer[0] for offer in live),
        edge_slots=sum(offer[1] for offer in live),
        edge_alive=bool(alive),
        dead=dead,
        responses=responses,
        limits_version=int(dict(_pairs(limits)).get(b"@version", 0)),
    )


def _pairs(reply: Any) -> list[tuple[bytes, bytes]]:
    """The fields of a hash, however the protocol shows it."""
    return list(reply.items()) if isinstance(reply, dict) else list(zip(reply[::2], reply[1::2], strict=True))


def _group(reply: Any) -> tuple[int, int]:
    """Pending and consumers of a stream's one group."""
    if not reply:
        return 0, 0
    about = reply[0] if isinstance(reply[0], dict) else dict(zip(reply[0][::2], reply[0][1::2], strict=True))
    plain = {name.decode() if isinstance(name, bytes) else name: value for name, value in about.items()}
    return int(plain["pending"]), int(plain["consumers"])


def _queue(lane: str, length: int, first: Any, group: tuple[int, int], now_us: int) -> Queue:
    oldest_s = 0.0
    if first:
        oldest_s = max(0.0, now_us / 1e6 - int(first[0][0].split(b"-")[0]) / 1000)
    return Queue(lane, max(0, length - group[0]), group[0], oldest_s, group[1])


def _level(deployment: str, limit: Limit, flat: dict[bytes, bytes], now_us: int) -> Level:
    """The level refilled to now, and the charges that a window can still hold; as lua/part_budget.lua counts."""
    name = limit.name.encode()
    stored = flat.get(name + b".level")
    elapsed_us = max(0, now_us - int(flat.get(b"at", now_us)))
    level = limit.cold if stored is None else min(limit.capacity, float(stored) + elapsed_us * limit.rate)
    used = 0
    found = re.match(rb"(\d+):(\d+):(.*)", flat.get(name + b".slots", b""))
    if found:
        slot_us, first = int(found[1]), int(found[2])
        oldest = (now_us - limit.window_us - limit.late_us) // slot_us
        used = sum(int(charge) for i, charge in enumerate(found[3].split()) if first + i >= oldest)
    return Level(deployment, limit.name, level, limit.capacity, used, limit.limit)
