"""Many workers, lost replies, take-overs and late finishers in any order, by seed; then all is brought to its end."""

from __future__ import annotations

import random
from collections import Counter

import msgspec
import pytest

from tests.script import views
from tests.script.arithmetic import Charge, worst
from tests.script.bench import PRIMARY, Bench, Held
from tests.script.conftest import Open
from tokenweir.keys import CLASSES

pytestmark = pytest.mark.anyio

WORKERS = ("w1", "w2", "w3")
_STALE = 0.3  # how often a worker acts on what it may have lost, or asks again


class Crowd:
    """Workers that forget nothing they ever held, and act on any of it at any time."""

    def __init__(self, bench: Bench, seed: int) -> None:
        self.bench = bench
        self.chance = random.Random(seed)
        self.held: dict[str, list[tuple[str, Held]]] = {"classify": [], "gate": [], "premium": [], "edge": []}
        self.notices: dict[str, list[str]] = {worker: [] for worker in WORKERS}
        self.calls: list[Held] = []
        self.started: list[Charge] = []
        self.made: Counter[tuple[str, int]] = Counter()
        self.ids: set[str] = set()

    async def step(self) -> None:
        """One worker does one thing."""
        acts = (self.produce, self.classify, self.gate, self.gate, self.drain, self.drain, self.call, self.call)
        if self.chance.random() < 0.2:
            await self.bench.advance(self.chance.choice([0.01, 0.1, 0.2, 4]))
        await self.chance.choice((*acts, self.call, self.finish, self.take_over, self.serve, self.cancel))()

    async def produce(self) -> None:
        """New requests; now and then an id a second time."""
        for _ in range(self.chance.randint(1, 4)):
            name = f"r{self.chance.randint(0, 60)}"
            self.ids.add(name)
            request = self.bench.request(
                name,
                priority=self.chance.choice(CLASSES),
                tenant=self.chance.choice("xyz"),
                prompt_tokens=self.chance.choice([10, 100, 700, 3000]),
                simple=self.chance.random() < 0.3,
                edge=True,
                deadline_ms=self.chance.choice([0, 0, 0, self.bench.now_ms + 20_000]),
            )
            await self.bench.redis("XADD", self.bench.keys.key("ingest"), "*", "request", msgspec.json.encode(request))

    async def _some(self, stage: str, lanes: tuple[str, ...]) -> list[Held]:
        """Entries of one lane to act on: newly read ones, or old ones that may be gone."""
        worker, lane = self.chance.choice(WORKERS), self.chance.choice(lanes)
        if self.chance.random() > _STALE:
            self.held[stage] += [(worker, item) for item in await self.bench.take(lane, consumer=worker, count=5)]
        mine = [item for _, item in self.held[stage] if item.lane == lane]
        return self.chance.sample(mine, min(len(mine), 3)) + mine[-5:]

    async def classify(self) -> None:
        for item in await self._some("classify", ("ingest",)):
            await self.bench.forward([item], f"gate:{item.request.priority}", claims=True)

    async def gate(self) -> None:
        held = await self._some("gate", ("gate:interactive", "gate:standard", "gate:batch"))
        verdicts = await self.bench.admit(held, edge_queue=1, most=20) if held else []
        for item, (decision, _) in zip(held, verdicts, strict=True):
            if decision in ("too_large", "expired", "queue_full"):
                await self.bench.finish(item, status="error", code="internal")

    async def drain(self) -> None:
        worker = self.chance.choice(WORKERS)
        self.notices[worker] += await self.bench.notices(consumer=worker)
        drained = await self.bench.drain(*self.notices[worker], consumer=worker, edge_queue=1)
        self.notices[worker] = [drained.kept] if drained.kept else []

    async def call(self) -> None:
        worker = self.chance.choice(WORKERS)
        held = await self.bench.take("premium", consumer=worker, count=5)
        self.held["premium"] += [(worker, item) for item in held]
        mine = [item for owner, item in self.held["premium"] if owner == worker][-6:]
        answers = await self.bench.start(mine, consumer=worker) if mine else []
        for item, answer in zip(mine, answers, strict=True):
            if answer == "started":
                self.calls.append(item)
                self.made[item.request.id, item.request.attempt] += 1
                self.started.append(Charge(self.bench.now_us, item.request.tokens))
            elif answer == "given_back" and item in self.calls:
                # It asked again, since the first reply was lost: that call was never made.
                self.calls.remove(item)
                self.made[item.request.id, item.request.attempt] -= 1

    async def finish(self) -> None:
        """A call ends: an answer, or another attempt. Its worker may have lost it, or say it twice."""
        if not self.calls:
            return
        item = self.chance.choice(self.calls)
        if self.chance.random() < 0.2:
            await self.bench.retry(item, wait_s=self.chance.choice([0, 5]))
        else:
            await self.bench.finish(item, used=self.chance.choice([-1, item.request.tokens // 2]))

    async def serve(self) -> None:
        for item in await self._some("edge", ("edge",)):
            await self.bench.finish(item)

    async def cancel(self) -> None:
        """A producer gives up; entries that nobody has claimed yet aren't known by their ids."""
        if self.ids:
            await self.bench.cancel(self.chance.choice(sorted(self.ids)))

    async def take_over(self) -> None:
        """A worker is taken for dead. Its calls may have been made: another attempt, through the gate."""
        lane = self.chance.choice(("premium", "gate:standard", "ingest", "edge"))
        worker = self.chance.choice(WORKERS)
        for item in await views.taken_over(self.bench, lane, consumer=worker):
            if lane == "premium":
                again = msgspec.structs.replace(item.request, attempt=item.request.attempt + 1)
                await self.bench.forward([item._replace(request=again)], f"gate:{again.priority}")
            else:
                stage = {"gate:standard": "gate", "ingest": "classify", "edge": "edge"}[lane]
                self.held[stage].append((worker, item))


@pytest.mark.parametrize("seed", range(12))
async def test_each_id_gets_one_result_whatever_happens(opened: Open, seed: int) -> None:
    """Whatever workers die, repeat themselves or come late: one result an id, and never more calls than allowed."""
    bench = await opened(PRIMARY, premium=6, edge=2)
    crowd = Crowd(bench, seed)
    for _ in range(250):
        await crowd.step()

    await views.run_out(bench)

    answers = await views.answers(bench)
    assert answers == dict.fromkeys(((name, "0") for name in crowd.ids), 1)
    assert worst(crowd.started, 60_000_000) <= 10_000
    assert worst([Charge(at, 1) for at, _ in crowd.started], 60_000_000) <= 100
    assert max(crowd.made.values()) == 1
