"""What a simulation counts while it runs, in bounded memory."""

from __future__ import annotations

import math
from typing import Final

import msgspec

from pipeline.plan.asked import CLASSES

# Buckets of the histogram grow by this much, so a percentile is right to half of it.
_STEP: Final = 0.02
_LEAST_S: Final = 0.001


class Spread(msgspec.Struct, frozen=True):
    """Percentiles of a length of time, in seconds."""

    count: int
    p50: float
    p95: float
    p99: float


class Histogram:
    """Percentiles of any number of times within 1 %; what is below a millisecond counts as 0."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self.count = 0

    def add(self, value_s: float) -> None:
        place = 0 if value_s < _LEAST_S else 1 + int(math.log(value_s / _LEAST_S) / math.log1p(_STEP))
        self._counts[place] = self._counts.get(place, 0) + 1
        self.count += 1

    def at(self, share: float) -> float:
        """The time that this share of all doesn't exceed; 0 when there are none."""
        left = math.ceil(self.count * share)
        for place in sorted(self._counts):
            left -= self._counts[place]
            if left <= 0:
                return 0.0 if place == 0 else _LEAST_S * (1 + _STEP) ** (place - 0.5)
        return 0.0

    def spread(self) -> Spread:
        p50, p95, p99 = (round(self.at(share), 4) for share in (0.5, 0.95, 0.99))
        return Spread(self.count, p50, p95, p99)


class Seconds:
    """What a picture shows: calls admitted and refused in each second, and the emptiest bucket at its end."""

    def __init__(self) -> None:
        self.admitted: list[int] = []
        self.rejected: list[int] = []
        self.level: list[float] = []

    def count(self, now_s: float, *, admitted: bool) -> None:
        second = int(now_s)
        for counts in (self.admitted, self.rejected):
            counts += [0] * (second + 1 - len(counts))
        (self.admitted if admitted else self.rejected)[second] += 1


class Tally:
    """Counts of one run.

    Attributes:
        waits: by rank, from arrival until premium or the edge takes it. first_tokens: until the first token.
        routes: by rank, how many went to premium and to the edge. deferred: of these, had waited in the backlog.
        refusals: answered with an error, by its reason.
        idle: windows in which, for a moment at least, nothing waited.
        alarms: what the headers raised: how often, and when first, in seconds.
    """

    def __init__(self, window_us: int) -> None:
        self._window_us = window_us
        self._empty_since: int | None = 0
        self.waits = [Histogram() for _ in CLASSES]
        self.first_tokens = [Histogram() for _ in CLASSES]
        self.routes = [{"premium": 0, "edge": 0} for _ in CLASSES]
        self.refusals: dict[str, int] = {}
        self.idle: set[int] = set()
        self.alarms: dict[str, tuple[int, float]] = {}
        self.given_up = 0
        self.deferred = 0
        self.seconds: Seconds | None = None

    def served(self, rank: int, route: str, wait_s: float, *, deferred: bool) -> None:
        self.waits[rank].add(wait_s)
        self.routes[rank][route] += 1
        self.deferred += deferred

    def refused(self, reason: str) -> None:
        self.refusals[reason] = self.refusals.get(reason, 0) + 1

    def alarm(self, name: str, now_s: float) -> None:
        often, first_s = self.alarms.get(name, (0, round(now_s, 1)))
        self.alarms[name] = (often + 1, first_s)

    def waiting(self, count: int, now: int) -> None:
        """So many wait from `now` on."""
        if count == 0 and self._empty_since is None:
            self._empty_since = now
        elif count > 0 and self._empty_since is not None:
            if now > self._empty_since:  # else others came in the same moment
                self._mark(self._empty_since, now)
            self._empty_since = None

    def close(self, now: int) -> None:
        """The run ends."""
        if self._empty_since is not None:
            self._mark(self._empty_since, now)

    def _mark(self, since: int, till: int) -> None:
        self.idle.update(range(since // self._window_us, till // self._window_us + 1))
