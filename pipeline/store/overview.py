"""A pool at a glance: queues, backlog, budgets, slots. Read in three round trips, changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from lua import load
from tokenweir.connection import Argument, Connection
from tokenweir.errors import StoreUnavailable
from tokenweir.keys import CLASSES, GROUPS

_VIEW = load("budgets_view")


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


class Standing(msgspec.Struct, frozen=True):
    """How a deployment stands, beside its levels.

    Attributes:
        paused_s: closed for so long, 0 = open. why: what the pause is for, such as `provider_429`.
        in_flight: calls granted and not over. factor: share of its rate that it uses after refusals, 1 = all.
        refunds: whether unused tokens are taken back.
    """

    paused_s: float
    why: str
    in_flight: int
    factor: float
    refunds: bool


class Closing(msgspec.Struct, frozen=True):
    """A drained pool takes nothing in: since when (Unix seconds), and who drained it."""

    since: float
    by: str


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """What operators look at first."""

    queues: list[Queue]
    backlog: dict[str, int]
    due_later: int
    budgets: list[Level]
    deployments: dict[str, Standing]
    workers: int
    premium_slots: int
    edge_slots: int
    edge_alive: bool
    dead: int
    responses: int
    limits_version: int
    closed: Closing | None = None


async def overview(connection: Connection) -> Overview:
    """The pool as it stands.

    Raises:
        StoreUnavailable: Redis didn't answer.
    """
    key = connection.keys.key
    words: list[tuple[Argument, ...]] = [("TIME",), ("HGETALL", key("limits")), ("HGETALL", key("slots"))]
    words += [("EXISTS", key("edge:alive")), ("GET", key("closed"))]
    words += [("XLEN", key("dead")), ("XLEN", key("responses"))]
    words += [("ZCARD", key(f"backlog:{name}")) for name in (*CLASSES, "due")]
    words += [("XLEN", key(lane)) for lane in GROUPS]
    words += [("XRANGE", key(lane), "-", "+", "COUNT", 1) for lane in GROUPS]
    time, limits, slots, alive, closed, dead, responses, *rest = await connection.commands(words)
    now_us = int(time[0]) * 1_000_000 + int(time[1])
    backlog, lengths, firsts = rest[:4], rest[4 : 4 + len(GROUPS)], rest[4 + len(GROUPS) :]

    names = [name.decode() for name, _ in _pairs(limits) if b"@" not in name]
    present = [lane for lane, length, first in zip(GROUPS, lengths, firsts, strict=True) if length or first]
    replies = await _groups(connection, [key(lane) for lane in present])
    pending = dict(zip(present, (_group(reply) for reply in replies), strict=True))
    levels, standings = await budgets(connection, names)

    offers = [tuple(map(int, text.split())) for _, text in _pairs(slots)]
    live = [offer for offer in offers if offer[2] > now_us]
    return Overview(
        queues=[
            _queue(lane, length, first, pending.get(lane, (0, 0)), now_us)
            for lane, length, first in zip(GROUPS, lengths, firsts, strict=True)
        ],
        backlog=dict(zip(CLASSES, backlog, strict=False)),
        due_later=backlog[3],
        budgets=levels,
        deployments=standings,
        workers=len(live),
        premium_slots=sum(offer[0] for offer in live),
        edge_slots=sum(offer[1] for offer in live),
        edge_alive=bool(alive),
        dead=dead,
        responses=responses,
        limits_version=int(dict(_pairs(limits)).get(b"@version", 0)),
        closed=_closing(closed),
    )


async def budgets(connection: Connection, names: Sequence[str]) -> tuple[list[Level], dict[str, Standing]]:
    """Levels and standing of these deployments, by the gate's own arithmetic.

    Raises:
        StoreUnavailable: Redis didn't answer.
    """
    if not names:
        return [], {}
    levels: list[Level] = []
    standings: dict[str, Standing] = {}
    rows = await connection.run(_VIEW, rest=[f"budget:{name}" for name in names])
    for raw, paused_us, why, in_flight, factor, refunds, limits in rows:
        name = raw.decode()
        standings[name] = Standing(
            int(paused_us) / 1e6, why.decode(), int(in_flight), int(factor) / 1000, bool(int(refunds))
        )
        levels += [Level(name, limit.decode(), *map(int, figures)) for limit, *figures in limits]
    return levels, standings


def _closing(text: bytes | None) -> Closing | None:
    if text is None:
        return None
    since, _, by = text.decode(errors="replace").partition(" ")
    return Closing(float(since) if since.isdigit() else 0.0, by)


def _pairs(reply: Any) -> list[tuple[bytes, bytes]]:
    """The fields of a hash, however the protocol shows it."""
    return list(reply.items()) if isinstance(reply, dict) else list(zip(reply[::2], reply[1::2], strict=True))


async def _groups(connection: Connection, streams: Sequence[str]) -> list[Any]:
    """About each stream's groups; nothing where this user may not ask."""
    try:
        return await connection.commands([("XINFO", "GROUPS", each) for each in streams]) if streams else []
    except StoreUnavailable as error:
        if not error.forbidden:
            raise
        return [None] * len(streams)


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
