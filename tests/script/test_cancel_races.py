"""Cancelling races everything else that can happen to a request: one result each, and the budget stays exact."""

from __future__ import annotations

import random
from collections import Counter

import msgspec
import pytest

from pipeline.message import decode
from tests.script import views
from tests.script.bench import PRIMARY, Bench, Held
from tests.script.conftest import Open

pytestmark = pytest.mark.anyio

WORKERS = ("w1", "w2")
IDS = tuple(f"r{number}" for number in range(14))


class Race:
    """Workers that start, finish, retry, give back and take over, in any order, while requests are cancelled."""

    def __init__(self, bench: Bench, seed: int) -> None:
        self.bench = bench
        self.chance = random.Random(seed)
        self.granted: list[tuple[str, Held]] = []  # read and not yet started, whoever may own them by now
        self.calls: list[Held] = []  # started; acted on any number of times
        self.charged: Counter[tuple[str, int]] = Counter()  # started and not given back, by id and attempt
        self.kept: set[str] = set()  # ids whose cancelling said that they were cancelled

    async def step(self) -> None:
        """One thing happens."""
        of_calls = (self.start, self.start, self.finish, self.retry, self.give_back, self.take_over)
        await self.chance.choice((self.arrive, self.gate, self.drain, *of_calls, self.cancel, self.bury))()

    async def arrive(self) -> None:
        """A request, or the same one once more."""
        name = self.chance.choice(IDS)
        request = self.bench.request(name, tenant=name, prompt_tokens=7, output_tokens=3)
        held = await self.bench.put("ingest", request)
        # Some are cancelled between the read and the claim.
        if self.chance.random() < 0.2:
            await self.cancel(name)
        await self.bench.forward(held, "gate:interactive", claims=True)

    async def gate(self) -> None:
        held = await self.bench.take("gate:interactive", consumer=self.chance.choice(WORKERS), count=4)
        if held:
            await self.bench.admit(held, most=3)
            for item in held:
                if self.chance.random() < 0.2:
                    await self.bench.admit([item])

    async def drain(self) -> None:
        await self.bench.drain(*await self.bench.notices())

    async def start(self) -> None:
        worker = self.chance.choice(WORKERS)
        self.granted += [(worker, held) for held in await self.bench.take("premium", consumer=worker, count=2)]
        mine = [held for owner, held in self.granted if owner == worker]
        if not mine:
            return
        self.granted = [(owner, held) for owner, held in self.granted if owner != worker]
        for held, answer in zip(mine, await self.bench.start(mine, consumer=worker), strict=True):
            if answer == "started":
                self.calls.append(held._replace(deployment=worker))
                self.charged[held.request.id, held.request.attempt] += 1

    def _call(self) -> Held | None:
        return self.chance.choice(self.calls) if self.calls else None

    async def finish(self) -> None:
        if held := self._call():
            await self.bench.finish(held)

    async def retry(self) -> None:
        if held := self._call():
            await self.bench.retry(held._replace(deployment="primary"))

    async def give_back(self) -> None:
        """A worker that couldn't make its call says so, and never speaks of it again."""
        if held := self._call():
            self.calls.remove(held)
            self.charged[held.request.id, held.request.attempt] -= await self.bench.give_back(
                [held], consumer=held.deployment
            )

    async def take_over(self) -> None:
        """All that is in hand at the moment is taken for lost: it goes back to the gate as a further attempt."""
        for entry, *_, text in await self.bench.run("entries_pending", ["premium", 0, "-", 100], lane="premium"):
            if self.chance.random() < 0.3:
                request = decode(text)
                again = msgspec.structs.replace(request, attempt=request.attempt + 1)
                await self.bench.forward([Held("premium", entry.decode(), again)], "gate:interactive")

    async def cancel(self, name: str = "") -> None:
        result = await self.bench.cancel(name or self.chance.choice(IDS))
        if result is not None and result.status == "cancelled":
            self.kept.add(result.id)

    async def bury(self) -> None:
        """A worker dies of something at the gate."""
        if self.chance.random() < 0.2:
            for held in await self.bench.take("gate:interactive", count=1):
                await self.bench.bury(held)


@pytest.mark.parametrize("seed", range(20))
async def test_one_result_and_an_exact_budget(opened: Open, seed: int) -> None:
    """Whatever meets a cancellation, each request has one result that stands, and exactly the calls are charged."""
    bench = await opened(msgspec.structs.replace(PRIMARY, rpm=1000, tpm=10_000), premium=6)
    race = Race(bench, seed)
    for _ in range(150):
        await race.step()

    for name in IDS:
        await race.cancel(name)
    await race.gate()
    await race.take_over()
    for lane in ("gate:interactive", "premium", "gate:interactive"):
        for held in await views.taken_over(bench, lane):
            if lane != "premium":
                await bench.admit([held])
            elif race.charged[held.request.id, held.request.attempt]:
                again = msgspec.structs.replace(held.request, attempt=held.request.attempt + 1)
                await bench.forward([held._replace(request=again)], "gate:interactive")
            else:
                assert await bench.start([held], consumer="end") == ["gone"]
    await bench.drain(*await bench.notices())

    assert set(await views.lengths(bench)) <= {"deferred"}
    assert await views.waiting(bench) == []
    assert await views.exists(bench, "grants", "reservations") == []
    assert (await views.budget_kept(bench)).get("in_flight", 0) == 0
    calls = sum(race.charged.values())
    assert (await views.budget(bench))[:2] == (calls, 10 * calls)
    answers = await views.answers(bench)
    assert all(count == 1 for count in answers.values())
    for name in race.kept:
        result = await bench.cancel(name)
        assert result is not None
        assert result.status == "cancelled"
