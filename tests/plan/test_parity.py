"""The plan decides as the real scripts do: the same arrivals through both, on a clock of ours."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from random import Random

import msgspec
import pytest

from pipeline.config import Deployment
from pipeline.limits import allowed as allowed_of
from pipeline.plan.asked import Asked
from pipeline.plan.figures import Tally
from pipeline.plan.gate import Room
from pipeline.plan.provider import Provider
from pipeline.plan.simulation import EPOCH_US, SECOND, Setup, Simulation
from tests.plan.real import Play, Served
from tests.script.conftest import Open, opened
from tokenweir.terms import terms

__all__ = ["opened"]

pytestmark = pytest.mark.anyio


class Given:
    """Traffic that was drawn before, and what became of it."""

    def __init__(self, arrivals: Sequence[Asked]) -> None:
        self._arrivals = arrivals
        self._number = {id(asked): number for number, asked in enumerate(arrivals)}
        self.served: list[Served] = []
        self.took_us: dict[int, int] = {}
        self.refused: set[int] = set()

    def arrivals(self) -> Iterator[Asked]:
        return iter(self._arrivals)

    def granted(self, asked: Asked, now: int) -> Sequence[Asked]:
        premium = asked.granted_us == EPOCH_US + now
        place = asked.deployment if premium else 0
        number = self._number[id(asked)]
        self.served.append(Served(number, now, "premium" if premium else "edge", asked.deferred, place))
        self.took_us[number] = now
        return ()

    def answered(self, asked: Asked, now: int) -> Sequence[Asked]:
        number = self._number[id(asked)]
        if number in self.took_us:
            self.took_us[number] = now - self.took_us[number]
        else:
            self.refused.add(number)
        return ()


_LEAST = 100


class Scene(msgspec.Struct, frozen=True, kw_only=True):
    """A pool, and how much comes to it."""

    room: Room
    deployments: tuple[Deployment, ...]
    share_simple: float = 0.3
    largest: int = 1_500
    load: float = 1.3
    refunds: bool = False


def _deployment(name: str = "primary", **settings: object) -> Deployment:
    given = {"name": name, "rpm": 120, "tpm": 12_000, "settlement": "none", "api_key": "env:KEY"} | settings
    return msgspec.convert(given, Deployment)


SCENES = {
    "plain": Scene(room=Room(premium=100), deployments=(_deployment(),)),
    "few slots": Scene(room=Room(premium=5), deployments=(_deployment(),)),
    "edge": Scene(
        room=Room(premium=12, edge=3, edge_queue=2), deployments=(_deployment(),), share_simple=0.6, load=2.0
    ),
    "full queue": Scene(room=Room(premium=100, edge=1, most_waiting=12), deployments=(_deployment(),), load=3.0),
    "two deployments": Scene(
        room=Room(premium=100, edge=2),
        deployments=(_deployment(), _deployment("second", rpm=60, tpm=20_000, enforcement="quantised:10s")),
        load=2.5,
    ),
    "large": Scene(room=Room(premium=100), deployments=(_deployment(), _deployment("second")), largest=9_000, load=2.5),
    "refunds": Scene(room=Room(premium=40), deployments=(_deployment(settlement="refund"),), refunds=True, load=2.0),
    "calls in flight": Scene(room=Room(premium=40), deployments=(_deployment(max_in_flight=6),), load=1.5),
}


def _arrivals(scene: Scene, seed: int, *, minutes: float = 3.0) -> list[Asked]:
    """A trickle and bursts of every class, by a few tenants; some are larger than anybody takes."""
    random, arrivals = Random(f"{seed} parity"), list[Asked]()
    tokens = sum(deployment.tpm or 0 for deployment in scene.deployments) * scene.load * minutes
    while tokens > 0 or len(arrivals) <= _LEAST:
        at_us = random.randrange(round(minutes * 60_000)) * 1_000
        together = random.choice((1, 1, 1, 2, 12))
        for _ in range(together):
            size = round(scene.largest ** random.uniform(0.5, 1)) if random.random() > 0.01 else 50_000
            tokens -= size if size < 50_000 else 0
            prompt = max(1, round(size * random.uniform(0.2, 0.8)))
            rank = random.choice((0, 0, 1, 2))
            arrivals.append(
                Asked(
                    at_us=at_us,
                    prompt=prompt,
                    output=max(1, size - prompt),
                    used=round(max(1, size - prompt) * random.uniform(0.1, 1.1)),
                    rank=rank,
                    tenant=f"tenant-{random.randrange(4)}",
                    simple=random.random() < scene.share_simple,
                )
            )
    return sorted(arrivals, key=lambda asked: (asked.at_us, asked.rank))


def _planned(scene: Scene, arrivals: Sequence[Asked], seed: int) -> Given:
    traffic = Given(arrivals)
    allowed = [allowed_of(deployment) for deployment in scene.deployments]
    since_s = 0.0 if scene.refunds else math.inf
    providers = [
        Provider(each, "10s" if "quantised" in each.enforcement else "fixed", seed=seed, refunds_from_s=since_s)
        for each in allowed
    ]
    setup = Setup(terms=[terms(each) for each in allowed], room=scene.room, seed=seed)
    simulation = Simulation(setup, traffic, providers, Tally(60 * SECOND))
    simulation.rest()
    simulation.run(None)
    assert sum(provider.rejected for provider in providers) == 0  # retries are another matter
    return traffic


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("name", SCENES)
async def test_plan_decides_as_the_scripts_do(opened: Open, name: str, seed: int) -> None:
    """Some hundred requests get the same decisions, and leave the backlog in the same order at the same times."""
    scene = SCENES[name]
    arrivals = _arrivals(scene, seed)
    planned = _planned(scene, arrivals, seed)
    bench = await opened(*scene.deployments, premium=scene.room.premium, edge=scene.room.edge)
    real = Play(bench, scene.room, planned.took_us)

    await real.run(arrivals)

    assert len(planned.served) + len(planned.refused) == len(arrivals) > _LEAST
    assert set(real.refused) == planned.refused
    for route in ("premium", "edge"):  # each a stream with an order of its own
        left, should = ([each for each in served if each.route == route] for served in (real.served, planned.served))
        assert [each.number for each in left] == [each.number for each in should]
        for one, other in zip(left, should, strict=True):
            # A wait is rounded up to a microsecond, and the scripts may work it out some moments later than the plan.
            assert abs(one.at_us - other.at_us) <= 20, (one, other)
            assert one._replace(at_us=0) == other._replace(at_us=0), (one, other)
    assert any(served.deferred for served in planned.served)
