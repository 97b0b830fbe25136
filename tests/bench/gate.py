"""What the gate's scripts cost the server, hand-over included.

Requests of 1 kB walk through the real streams and scripts: ingest, forward to the gate's lanes, admit, start,
finish. Of every twenty, ten are granted, five go to the edge and five wait (three that the budget has no room
for, two that queue behind their own tenant). Two limits, after more than a window's length of work. One Redis core
runs all scripts of a pool, so decisions per second of the server's CPU are what bounds a pool.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

import msgspec
from rich.table import Table

from pipeline.config import Deployment, Edge, Pool
from pipeline.message import Request, decode
from pipeline.outcome import Done, Forward, Used
from pipeline.store import Entry, Store
from tests.bench.meter import Cost, Meter, Target, median
from tokenweir.keys import GATE_LANES, GROUPS, Keys
from tokenweir.wire import Class, Result, Usage

T = TypeVar("T")
R = TypeVar("R")
GOAL_DECISIONS_PER_S = 40_000
BATCHES = (32, 100)
_ROWS = 800
_WINDOW_S, _SEND_WITHIN_S = 6.0, 2.0
_LIMIT_TOKENS = 1_000_000_000
_TOKENS = 570
# Larger than the burst: granted from a full bucket only, and the first row of a batch has drawn from it.
_LARGE_TOKENS = 200_000_000
_BODY = msgspec.json.encode({"messages": [{"role": "user", "content": "Where is my parcel, and why so late? " * 26}]})
_MIX = ("premium",) * 10 + ("edge",) * 5 + ("deferred",) * 5
_PERMANENT = ("limits", "slots", "edge:alive")


class Step(NamedTuple):
    """One script over one walk: what it was, how many entries it served, and what they cost."""

    name: str
    batch: int
    entries: int
    cost: Cost


def pool(deployments: int) -> Pool:
    """A pool that never runs out, but for requests larger than its burst."""
    names = ["primary", *(f"spare-{index}" for index in range(1, deployments))]
    limits = {"rpm": 100_000_000, "tpm": _LIMIT_TOKENS, "window_s": _WINDOW_S, "send_within_s": _SEND_WITHIN_S}
    return Pool(
        deployments=tuple(Deployment(name=name, api_key="none", **limits) for name in names),  # type: ignore[arg-type]
        max_request_tokens=_LIMIT_TOKENS,
        max_waiting=1_000_000,
        edge=Edge(queue=1_000_000),
    )


class Walk:
    """One pool on one server, walked through again and again."""

    def __init__(self, target: Target, deployments: int = 1) -> None:
        self.target = target
        self.deployments = deployments
        self._keys = Keys(f"gate{deployments}")
        self._store = Store(target.url, self._keys, pool(deployments))
        self._meter = Meter(target.url)
        self._number = 0

    async def open(self) -> None:
        """Limits and slots in place, and a window's length of work, so that every slot is in use."""
        await self._store.gate.seed()
        await self._store.gate.beat(premium_slots=1_000_000, edge_slots=1_000_000, ttl_ms=3_600_000)
        warm_at = time.monotonic() + _WINDOW_S + _SEND_WITHIN_S + 0.2
        while time.monotonic() < warm_at:
            await self.walk(100, rows=200, checked=False)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._store.aclose()
        await self._meter.aclose()

    async def walk(self, batch: int, *, rows: int = _ROWS, checked: bool = True) -> list[Step]:
        """Take `rows` requests from ingest to their end, `batch` at a time; the cost of each script.

        Raises:
            AssertionError: decisions other than planned, so that the figures would be of something else.
        """
        await self._clear()
        store, steps = self._store, []
        requests = [self._request(index % batch) for index in range(rows // batch * batch)]

        async def measured(name: str, call: Callable[[Sequence[T]], Awaitable[list[R]]], items: Sequence[T]) -> list[R]:
            await self._meter.begin()
            replies = [reply for some in _parts(items, batch) for reply in await call(some)]
            steps.append(Step(name, batch, len(items), await self._meter.end()))
            return replies

        for some in _parts(requests, batch):
            await store.control.commands(
                [("XADD", self._keys.key("ingest"), "*", "request", msgspec.json.encode(one)) for one in some]
            )
        entries = await self._take("ingest")
        moves = [(id_, Forward(request=one, to=f"gate:{one.priority}", claims=True)) for id_, one in entries]
        await measured("forward", partial(store.streams.forward, "ingest"), moves)
        waiting = {one.id: (id_, one) for lane in GATE_LANES for id_, one in await self._take(lane)}
        verdicts = await measured("admit", store.gate.admit, [waiting[one.id] for one in requests])
        decided = Counter(verdict.decision for verdict in verdicts)
        planned = Counter(_MIX[index % batch % len(_MIX)] for index in range(len(requests)))
        assert not checked or decided == planned, f"decided {dict(decided)} where {dict(planned)} was planned"
        granted = await self._take("premium")
        answers = Counter(answer for answer, _ in await measured("start", store.gate.start, granted))
        assert not checked or answers == {"started": len(granted)}, f"starts of {len(granted)} granted calls: {answers}"
        for lane, held in (("premium", granted), ("edge", await self._take("edge"))):
            done = [(id_, _done(one, lane)) for id_, one in held]
            await measured(f"finish {lane}", partial(store.streams.finish, lane), done)
        return steps

    async def _take(self, lane: str) -> list[tuple[str, Request]]:
        """Everything new of a lane."""
        found: list[Entry] = await self._store.streams.read(self._store.control, [lane], count=1_000_000)
        return [(entry.id, decode(entry.fields[b"request"])) for entry in found]

    async def _clear(self) -> None:
        """Take all work away; limits, budgets and slots stay."""
        control, kept = self._store.control, {self._keys.key(name).encode() for name in _PERMANENT}
        budgets = self._keys.key("budget:").encode()
        names = await control.command("KEYS", self._keys.root.replace("{", "[{]") + "*")
        gone = [name for name in names if name not in kept and not name.startswith(budgets)]
        for some in _parts(gone, 500):
            await control.command("UNLINK", *some)
        await self._store.streams.make_groups(list(GROUPS))

    def _request(self, place: int) -> Request:
        """The request at a place in a batch: the mix is by place, so that each batch holds it."""
        self._number += 1
        kind, at = _MIX[place % len(_MIX)], place % len(_MIX)
        classes: tuple[Class, ...] = ("interactive", "interactive", "interactive", "standard", "batch")
        behind = at >= 18  # these queue behind the large ones of their tenant
        busy = f"busy-{self._number - 2}" if behind else f"busy-{self._number}"
        return Request(
            id=f"{self._number:032x}",
            body=msgspec.Raw(_BODY),
            tenant=busy if kind == "deferred" else f"tenant-{place % 7}",
            priority="interactive" if kind == "deferred" else classes[place % 5],
            task="analysis",
            simple=kind == "edge",
            edge=kind == "edge",
            prompt_tokens=_TOKENS - 256 if kind == "premium" or behind else _LARGE_TOKENS,
            output_tokens=256,
            entered_ms=round(time.time() * 1000),
            metadata=msgspec.Raw(b"{}"),
        )


def bench_request(number: int) -> Request:
    """A request of 1 kB."""
    return Request(
        id=f"{number:032x}",
        body=msgspec.Raw(_BODY),
        tenant=f"tenant-{number % 7}",
        prompt_tokens=_TOKENS - 256,
        output_tokens=256,
        entered_ms=round(time.time() * 1000),
    )


async def measure(targets: list[Target], *, repeats: int, progress: Callable[[], None]) -> list[dict[str, object]]:
    """Walks of every server and batch size, one after the other in each round; medians over the rounds."""
    walks = [Walk(target) for target in targets] + [Walk(targets[0], deployments=3)]
    found: dict[tuple[str, int, int, str], list[Step]] = defaultdict(list)
    try:
        for walk in walks:
            await walk.open()
            progress()
        for _ in range(repeats):
            for walk in walks:
                for batch in BATCHES if walk.deployments == 1 else BATCHES[-1:]:
                    for step in await walk.walk(batch):
                        found[walk.target.name, walk.deployments, batch, step.name].append(step)
                    progress()
    finally:
        for walk in walks:
            await walk.aclose()
    return [
        {
            "server": server,
            "deployments": deployments,
            "batch": batch,
            "script": script,
            "server_us": round(median(step.cost.server_s / step.entries * 1e6 for step in steps), 2),
            "client_us": round(median(step.cost.client_s / step.entries * 1e6 for step in steps), 2),
            "wall_us": round(median(step.cost.wall_s / step.entries * 1e6 for step in steps), 2),
            "per_server_s": round(median(step.entries / step.cost.server_s for step in steps)),
        }
        for (server, deployments, batch, script), steps in found.items()
    ]


def rounds(targets: list[Target], repeats: int) -> int:
    """How often `measure` reports progress."""
    return len(targets) + 1 + repeats * (len(targets) * len(BATCHES) + 1)


def table(rows: list[dict[str, object]]) -> Table:
    """The figures for people; those of the gate itself first."""
    shown = Table(title="Scripts in batches, 1 kB requests, two limits: per entry")
    shown.add_column("server")
    for column in ("deployments", "batch", "script"):
        shown.add_column(column, justify="left" if column == "script" else "right")
    for column in ("server us", "client us", "wall us", "entries/s per Redis core"):
        shown.add_column(column, justify="right")
    for row in sorted(rows, key=lambda row: row["script"] != "admit"):
        figures = [f"{row[name]:.1f}" for name in ("server_us", "client_us", "wall_us")]
        words = [str(row[name]) for name in ("server", "deployments", "batch", "script")]
        shown.add_row(*words, *figures, f"{row['per_server_s']:,}")
    return shown


def _done(request: Request, lane: str) -> Done:
    """An answer that used less than was reserved."""
    used = request.prompt_tokens + 64
    usage = Usage(prompt_tokens=request.prompt_tokens, completion_tokens=64, total_tokens=used)
    result = Result(
        id=request.id,
        status="ok",
        route="premium" if lane == "premium" else "edge",
        model="none",
        content="ok " * 100,
        body=msgspec.Raw(b'{"choices": []}'),
        finish_reason="stop",
        usage=usage,
    )
    return Done(result=result, used=Used(prompt=request.prompt_tokens, output=64) if lane == "premium" else None)


def _parts(items: Sequence[T], size: int) -> list[Sequence[T]]:
    return [items[at : at + size] for at in range(0, len(items), size)]
