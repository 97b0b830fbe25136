"""Who asks for what and when: the profiles of `tokenweir plan`. Seeded; times in microseconds from the start.

Open traffic comes whatever happens to it; closed traffic asks again once it was served. Both are one interface, so
that a profile may be a mixture.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from random import Random
from typing import Protocol

import msgspec

from pipeline.plan.asked import Asked

SECOND: int = 1_000_000


class Traffic(Protocol):
    """What a simulation asks of its callers."""

    def arrivals(self) -> Iterator[Asked]:
        """What comes by itself, in the order of time; need not end."""

    def granted(self, asked: Asked, now: int) -> Sequence[Asked]:
        """What comes because `asked` has left the queue."""

    def answered(self, asked: Asked, now: int) -> Sequence[Asked]:
        """What comes, later perhaps, because `asked` was answered or refused."""


class Sizes(msgspec.Struct, frozen=True):
    """Tokens of a request, prompt and reserved answer: mostly small ones, with all sizes up to the largest among them.

    Attributes:
        small: the largest of the small ones. large_share: how many are of any size up to `largest`.
    """

    small: int
    largest: int
    large_share: float = 1.0

    @property
    def mean(self) -> float:
        """Of what a request reserves."""
        return (1 - self.large_share) * (self.small + 2) / 2 + self.large_share * (self.largest + 2) / 2

    def draw(self, random: Random, at_us: int, *, rank: int = 0, tenant: str = "default") -> Asked:
        """A request; its answer uses a part of what is reserved for it."""
        most = self.largest if random.random() < self.large_share else self.small
        tokens = random.randint(2, max(2, most))
        prompt = max(1, min(tokens - 1, round(tokens * random.uniform(0.2, 0.8))))
        output = tokens - prompt
        used = max(1, round(output * random.uniform(0.2, 0.9)))
        return Asked(at_us=at_us, prompt=prompt, output=output, used=used, rank=rank, tenant=tenant)


class Constant:
    """Endless work: `waiting` requests always wait, and each that goes is replaced by another."""

    def __init__(self, sizes: Sizes, *, seed: int, waiting: int = 48) -> None:
        self._sizes, self._waiting = sizes, waiting
        self._random = Random(f"{seed} constant")

    def arrivals(self) -> Iterator[Asked]:
        return iter([self._sizes.draw(self._random, 0) for _ in range(self._waiting)])

    def granted(self, asked: Asked, now: int) -> Sequence[Asked]:
        # What is refused and comes again has been replaced already.
        return () if asked.attempt > 1 else (self._sizes.draw(self._random, now),)

    def answered(self, asked: Asked, now: int) -> Sequence[Asked]:
        return ()


class Bursts:
    """Callers that come all at once, with a fifth to one and a half windows' work, and then stay away for a while.

    Two thirds of what is allowed on average: every burst finds the budget rested, which is when a gate can grant most
    in the shortest time.
    """

    def __init__(self, sizes: Sizes, *, calls_per_window: float, window_s: float, seed: int) -> None:
        self._sizes, self._calls, self._window_us = sizes, calls_per_window, window_s * SECOND
        self._random = Random(f"{seed} bursts")

    def arrivals(self) -> Iterator[Asked]:
        random, at = self._random, 0.0
        while True:
            calls = max(1, round(self._calls * random.uniform(0.2, 1.5)))
            for offset in sorted(random.uniform(0, SECOND) for _ in range(calls)):
                yield self._sizes.draw(random, round(at + offset), tenant=f"caller-{random.randrange(12)}")
            at += SECOND + self._window_us * random.uniform(0.3, 2.2)

    def granted(self, asked: Asked, now: int) -> Sequence[Asked]:
        return ()

    def answered(self, asked: Asked, now: int) -> Sequence[Asked]:
        return ()


class Story:
    """Forty people who ask, read, think for a minute and ask again; and a batch job by twelve parallel callers.

    Sizes stand at the scale of 30,000 tokens a minute; other limits have proportionately more users and calls.
    """

    USERS, THINK_S, BATCH_CALLS, CALLERS = 40, 60.0, 400, 12
    BATCH_AT_S = 30.0
    # Of what users ask, this share is simple: intents, routes.
    SIMPLE_SHARE = 0.27

    def __init__(self, *, seed: int, scale: float = 1.0) -> None:
        self._random = Random(f"{seed} story")
        self._users = max(1, round(self.USERS * scale))
        self._callers = max(1, round(self.CALLERS * scale))
        self._left = max(1, round(self.BATCH_CALLS * scale))

    def arrivals(self) -> Iterator[Asked]:
        users = sorted((self._think_us(), user) for user in range(self._users))
        batch = [call for _ in range(self._callers) for call in self._batch(round(self.BATCH_AT_S * SECOND))]
        first = [self._question(f"user-{user}", at) for at, user in users]
        return iter(sorted(chain(first, batch), key=lambda asked: asked.at_us))

    def granted(self, asked: Asked, now: int) -> Sequence[Asked]:
        return ()

    def answered(self, asked: Asked, now: int) -> Sequence[Asked]:
        if asked.rank:
            return self._batch(now)
        return (self._question(asked.tenant, now + self._think_us()),)

    def _think_us(self) -> int:
        return round(self._random.expovariate(1 / self.THINK_S) * SECOND)

    def _question(self, tenant: str, at_us: int) -> Asked:
        """570 tokens reserved on average: the simple ones are short."""
        random = self._random
        simple = random.random() < self.SIMPLE_SHARE
        prompt = random.randint(80, 200) if simple else random.randint(150, 400)
        output = 64 if simple else random.choice((320, 400, 480))
        used = round(output * random.uniform(0.2, 0.9))
        return Asked(at_us=at_us, prompt=prompt, output=output, used=used, tenant=tenant, simple=simple)

    def _batch(self, at_us: int) -> Sequence[Asked]:
        if not self._left:
            return ()
        self._left -= 1
        random = self._random
        prompt, output = random.randint(50, 120), random.choice((32, 40, 48))
        used = round(output * random.uniform(0.2, 0.9))
        return (Asked(at_us=at_us, prompt=prompt, output=output, used=used, rank=2, tenant="reports"),)
