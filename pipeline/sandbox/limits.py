"""Enforcement of a provider's limits: what is admitted, and when a refused call would fit. Pure; `now` is an argument.

A mode is one small class with the methods of `Budget`, and a line in `_MODES`; a further dimension is one more name in
the mapping given to `Limits`. Times are seconds of one clock that never steps back.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from pipeline.sandbox.settings import Enforcement


class Verdict(msgspec.Struct, frozen=True):
    """What became of a call.

    Attributes:
        short: the dimension that refused it (the one with the longest wait), None when admitted.
        wait_s: until the call would fit if nobody else came; infinite when it never could.
    """

    short: str | None = None
    wait_s: float = 0.0

    @property
    def admitted(self) -> bool:
        return self.short is None


class Budget(Protocol):
    """One dimension (requests, tokens, ...) under one mode."""

    @property
    def limit(self) -> int:
        """What the account is told it may use in a window."""

    def level(self, now: float) -> float:
        """The most that a call may cost now."""

    def take(self, cost: int, now: float) -> None:
        """Count `cost`; only after `level` said that it fits."""

    def wait_s(self, cost: int, now: float) -> float:
        """Seconds until `cost` would fit; infinite when it never will."""

    def full_s(self, now: float) -> float:
        """Seconds until nothing counts any more, if nobody comes: what the reset headers say."""


class Bucket:
    """Capacity L, refilled continuously at L per window.

    Kept as an integer in units of 1/window of a token, with times in whole microseconds, so that a million refills add
    no rounding: a judge must not round in anybody's favour.
    """

    def __init__(self, limit: int, window_s: float) -> None:
        self.limit = limit
        self._unit = round(window_s * 1e6)
        self._full = limit * self._unit
        self._held = self._full
        self._at_us: int | None = None

    def _refill(self, now: float) -> int:
        now_us = round(now * 1e6)
        if self._at_us is not None:
            self._held = min(self._full, self._held + (now_us - self._at_us) * self.limit)
        self._at_us = now_us
        return self._held

    def level(self, now: float) -> float:
        return self._refill(now) / self._unit

    def take(self, cost: int, now: float) -> None:
        self._held = self._refill(now) - cost * self._unit

    def wait_s(self, cost: int, now: float) -> float:
        if cost > self.limit:
            return math.inf
        return max(0, cost * self._unit - self._refill(now)) / self.limit / 1e6

    def full_s(self, now: float) -> float:
        return (self._full - self._refill(now)) / self.limit / 1e6


class Sliding:
    """Exact: what was admitted in the trailing window (now - W, now] plus the cost must not exceed L.

    Arrival times and running totals stand in two parallel lists, the expired ones before `_first`. So a call costs
    amortised constant time, and the wait of a refused one a binary search.
    """

    def __init__(self, limit: int, window_s: float) -> None:
        self.limit = limit
        self._window_s = window_s
        self._at: list[float] = []
        self._total: list[int] = []  # all that was ever admitted, this call included
        self._first = 0
        self._expired = 0  # the running total before `_first`

    def _expire(self, now: float) -> None:
        start = now - self._window_s
        while self._first < len(self._at) and self._at[self._first] <= start:
            self._expired = self._total[self._first]
            self._first += 1
        if self._first > 1024 and self._first * 2 > len(self._at):
            del self._at[: self._first], self._total[: self._first]
            self._first = 0

    def _used(self) -> int:
        return self._total[-1] - self._expired if self._total else 0

    def level(self, now: float) -> float:
        self._expire(now)
        return self.limit - self._used()

    def take(self, cost: int, now: float) -> None:
        self._expire(now)
        self._at.append(now)
        self._total.append((self._total[-1] if self._total else self._expired) + cost)

    def wait_s(self, cost: int, now: float) -> float:
        if cost > self.limit:
            return math.inf
        self._expire(now)
        excess = self._used() + cost - self.limit
        if excess <= 0:
            return 0.0
        last = bisect_left(self._total, self._expired + excess, lo=self._first)
        return self._at[last] + self._window_s - now

    def full_s(self, now: float) -> float:
        self._expire(now)
        return self._at[-1] + self._window_s - now if self._first < len(self._at) else 0.0


_MODES: dict[Enforcement, Callable[[int, float], Budget]] = {"bucket": Bucket, "sliding": Sliding}


class Limits:
    """All budgets of one account; a call is charged to each or to none."""

    def __init__(self, mode: Enforcement, limits: Mapping[str, int], window_s: float) -> None:
        self.budgets: dict[str, Budget] = {name: _MODES[mode](limit, window_s) for name, limit in limits.items()}

    def charge(self, costs: Mapping[str, int], now: float) -> Verdict:
        """Admit and count the call, or refuse it and count nothing.

        Args:
            costs: by dimension; one for each budget.
        """
        short = [name for name, budget in self.budgets.items() if budget.level(now) < costs[name]]
        if short:
            waits = {name: self.budgets[name].wait_s(costs[name], now) for name in short}
            worst = max(short, key=waits.__getitem__)
            return Verdict(short=worst, wait_s=waits[worst])
        for name, budget in self.budgets.items():
            budget.take(costs[name], now)
        return Verdict()
