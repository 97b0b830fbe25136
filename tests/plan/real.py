"""The real scripts on a real server, played by good workers on a clock of ours: what `Simulation` says happens.

Drains that the simulation leaves out, because they can't change anything, are done here as the workers do them: every
notice is one. Newcomers of one moment are decided one by one, and whoever waits is looked at in between: in a batch
they would all come before.
"""

from __future__ import annotations

import heapq
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import count
from typing import NamedTuple

from pipeline.plan.asked import CLASSES, Asked
from pipeline.plan.gate import Room
from tests.script.bench import Bench, Held

# As in the simulation: from the end of a wait to the drain that it was for.
_WAKE_US = 1_000
# Calls that the simulation never made end after this.
_UNKNOWN_US = 1_000_000


class Served(NamedTuple):
    """A request that left for premium (`deployment` by index) or the edge, and when: microseconds from the start."""

    number: int
    at_us: int
    route: str
    deferred: bool
    deployment: int


class Play:
    """Arrivals, calls and waits in the order of their times.

    Attributes:
        served: in the order in which they left. refused: by the gate, with its reason.
    Args:
        took_us: how long the calls of requests take, by number.
    """

    def __init__(self, bench: Bench, room: Room, took_us: Mapping[int, int]) -> None:
        self._bench, self._room, self._took_us = bench, room, took_us
        self._start_us = bench.now_us
        self._asked: dict[int, Asked] = {}
        self._places = {deployment.name: place for place, deployment in enumerate(bench.deployments)}
        self._deferred: set[int] = set()
        self._events: list[tuple[int, int, Callable[[], Awaitable[None]]]] = []
        self._numbers = count()
        self._kept: list[str] = []
        self._looked_us = 0
        self.served: list[Served] = []
        self.refused: dict[int, str] = {}

    async def run(self, arrivals: Sequence[Asked]) -> None:
        """Play until nothing is left to happen; `arrivals` in the order of time."""
        for number, asked in enumerate(arrivals):
            self._at(asked.at_us, self._coming(number, asked))
        while self._events:
            at, _, act = heapq.heappop(self._events)
            await self._bench.forward_to(self._start_us + at)
            await act()
            while notices := await self._bench.notices():
                await self._drain([*self._kept, *notices])

    @property
    def _now(self) -> int:
        return self._bench.now_us - self._start_us

    def _at(self, at_us: int, act: Callable[[], Awaitable[None]]) -> None:
        heapq.heappush(self._events, (at_us, next(self._numbers), act))

    def _coming(self, number: int, asked: Asked) -> Callable[[], Awaitable[None]]:
        async def arrive() -> None:
            self._asked[number] = asked
            request = self._bench.request(
                f"{number:06}",
                prompt_tokens=asked.prompt,
                output_tokens=asked.output,
                tenant=asked.tenant,
                simple=asked.simple,
                edge=asked.simple,
                priority=CLASSES[asked.rank],
            )
            held, room = await self._bench.arrive(request), self._room
            ((decision, _),) = await self._bench.admit(held, edge_queue=room.edge_queue, most=room.most_waiting)
            if decision == "deferred":
                self._deferred.add(number)
            elif decision not in ("premium", "edge"):
                self.refused[number] = decision
                await self._bench.finish(*held, status="error", code="internal")
            await self._take_up()

        return arrive

    async def _take_up(self) -> None:
        """Workers have free hands for whatever was handed over."""
        for lane in ("premium", "edge"):
            held = await self._bench.take(lane)
            if held and lane == "premium":
                assert await self._bench.start(held) == ["started"] * len(held)
            for item in held:
                number = int(item.request.id)
                place = self._places[item.deployment] if item.deployment else 0
                self.served.append(Served(number, self._now, lane, number in self._deferred, place))
                self._at(self._now + self._took_us.get(number, _UNKNOWN_US), self._ending(item, number))

    def _ending(self, item: Held, number: int) -> Callable[[], Awaitable[None]]:
        async def end() -> None:
            asked = self._asked[number]
            assert await self._bench.finish(item, used=asked.prompt + asked.used) == [1]

        return end

    async def _drain(self, notices: Sequence[str]) -> None:
        """One look at the backlog, and the timer for the next one."""
        self._looked_us = self._now
        drained = await self._bench.drain(*notices, edge_queue=self._room.edge_queue)
        # Else a worker would look again at once, and again.
        assert drained.wait_us or not drained.kept or drained.premium + drained.edge + drained.expired > 0, drained
        await self._take_up()
        self._kept = [drained.kept] if drained.kept else []
        if self._kept:
            later_us = max(1, drained.wait_us) + _WAKE_US if drained.wait_us else 0
            self._at(self._now + later_us, self._waking(drained.kept))

    def _waking(self, kept: str) -> Callable[[], Awaitable[None]]:
        at_us = self._now

        async def wake() -> None:
            if self._kept == [kept] and self._looked_us == at_us:
                await self._drain(self._kept)

        return wake
