"""What a storm of cancellations costs the server, and how long others wait for it meanwhile.

A backlog of 100,000 requests of 1 kB, of which 10,000 are cancelled at random by one client as fast as it can, while
another one asks for nothing but the time.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable

from rich.table import Table

from pipeline.outcome import Forward
from pipeline.store import Store
from tests.bench.gate import bench_request, pool
from tests.bench.meter import Cost, Meter, Target, median
from tokenweir.client import Client
from tokenweir.keys import GROUPS, Keys

GOAL_SERVER_US = 60
_WAITING, _CANCELLED, _AT_ONCE = 100_000, 10_000, 500


async def measure(targets: list[Target], *, progress: Callable[[], None]) -> list[dict[str, object]]:
    """One storm on each server."""
    rows: list[dict[str, object]] = []
    for target in targets:
        ids = await _fill(target, progress)
        cost, waits = await _storm(target, random.Random(1).sample(ids, _CANCELLED))
        rows.append({
            "server": target.name,
            "waiting": _WAITING,
            "cancelled": _CANCELLED,
            "server_us": round(cost.server_s / _CANCELLED * 1e6, 1),
            "wall_us": round(cost.wall_s / _CANCELLED * 1e6, 1),
            "others_wait_ms_median": round(median(waits) * 1000, 2),
            "others_wait_ms_longest": round(max(waits) * 1000, 2),
        })  # fmt: skip
        progress()
    return rows


def rounds(targets: list[Target]) -> int:
    """How often `measure` reports progress."""
    return len(targets) * (_WAITING // _AT_ONCE + 1)


async def _fill(target: Target, progress: Callable[[], None]) -> list[str]:
    """Let requests through to the backlog, since there are no slots; returns their ids."""
    store, lane = Store(target.url, Keys("storm"), pool(1)), "gate:interactive"
    ids: list[str] = []
    try:
        await store.gate.seed()
        await store.streams.make_groups(list(GROUPS))
        for first in range(0, _WAITING, _AT_ONCE):
            requests = [bench_request(first + index) for index in range(_AT_ONCE)]
            ids += [request.id for request in requests]
            await store.control.commands([("XADD", store.keys.key("ingest"), "*", "a", "b")] * _AT_ONCE)
            entries = await store.streams.read(store.control, ["ingest"], count=_AT_ONCE)
            moves = [
                (entry.id, Forward(request=request, to=lane, claims=True))
                for entry, request in zip(entries, requests, strict=True)
            ]
            await store.streams.forward("ingest", moves)
            entries = await store.streams.read(store.control, [lane], count=_AT_ONCE)
            await store.gate.admit([(entry.id, request) for entry, request in zip(entries, requests, strict=True)])
            progress()
        waiting = await store.control.command("HLEN", store.keys.key("backlog:meta"))
        assert waiting == _WAITING, f"{waiting:,} wait"
    finally:
        await store.aclose()
    return ids


async def _storm(target: Target, ids: list[str]) -> tuple[Cost, list[float]]:
    """What cancelling these costs, and how long each question of somebody else took meanwhile."""
    meter, waits, other = Meter(target.url), [], Store(target.url, Keys("storm"), pool(1))

    async def ask() -> None:
        while True:
            asked = time.perf_counter()
            await other.control.command("TIME")
            waits.append(time.perf_counter() - asked)
            await asyncio.sleep(0.001)

    async with Client(target.url, pool="storm") as client:
        await client.cancel_many(["nobody"])  # connections and the script are there
        asking = asyncio.create_task(ask())
        await meter.begin()
        results = await client.cancel_many(ids)
        cost = await meter.end()
        asking.cancel()
        await asyncio.wait([asking])
    await other.aclose()
    await meter.aclose()
    assert all(result and result.status == "cancelled" for result in results), "not all were cancelled"
    return cost, waits


def table(rows: list[dict[str, object]]) -> Table:
    """The figures for people."""
    shown = Table(title=f"Cancelling {_CANCELLED:,} of {_WAITING:,} requests that wait: per request")
    for column in ("server", "server us", "wall us", "others wait ms, median", "longest"):
        shown.add_column(column, justify="left" if column == "server" else "right")
    names = ("server", "server_us", "wall_us", "others_wait_ms_median", "others_wait_ms_longest")
    for row in rows:
        shown.add_row(*(str(row[name]) for name in names))
    return shown
