"""The ways in which providers enforce one limit, a class each. Pure; `now` is an argument.

All arithmetic is in integers: times are whole microseconds, and where a limit doesn't divide evenly the unit is made
smaller instead of rounding. A judge must not round in anybody's favour. Times come from one clock that never steps
back.
"""

import math
from bisect import bisect_left
from typing import Protocol


class Budget(Protocol):
    """One dimension (requests, tokens, ...) under one mode."""

    @property
    def limit(self) -> int:
        """What the account is told it may use in a window."""

    def level(self, now: float) -> float:
        """The most that a call may cost now."""

    def take(self, cost: int, now: float) -> None:
        """Count `cost`; only after `level` said that it fits."""

    def refund(self, cost: int, at: float, now: float) -> None:
        """Stop counting `cost` of what was taken at `at`, as far as it still counts now."""

    def wait_s(self, cost: int, now: float) -> float:
        """Seconds until `cost` would fit; infinite when it never will."""

    def full_s(self, now: float) -> float:
        """Seconds until nothing counts any more, if nobody comes: what the reset headers say."""


def microseconds(seconds: float) -> int:
    """The nearest whole number of them."""
    return round(seconds * 1e6)


class Bucket:
    """Capacity L/parts, refilled continuously at L per window.

    A capacity below one holds one: nothing would ever be admitted otherwise.
    """

    def __init__(self, limit: int, window_s: float, *, parts: int = 1) -> None:
        self.limit = limit
        self._unit = microseconds(window_s) * parts  # of the level, in one token
        self._flow = limit * parts  # units in a microsecond
        self._full = max(limit * microseconds(window_s), self._unit)
        self._held = self._full
        self._at_us: int | None = None

    def _refill(self, now: float) -> int:
        now_us = microseconds(now)
        if self._at_us is not None:
            self._held = min(self._full, self._held + (now_us - self._at_us) * self._flow)
        self._at_us = now_us
        return self._held

    def level(self, now: float) -> float:
        return self._refill(now) / self._unit

    def take(self, cost: int, now: float) -> None:
        self._held = self._refill(now) - cost * self._unit

    def refund(self, cost: int, at: float, now: float) -> None:
        self._held = min(self._full, self._refill(now) + cost * self._unit)

    def wait_s(self, cost: int, now: float) -> float:
        needed = cost * self._unit
        if needed > self._full:
            return math.inf
        return _seconds_to_flow(max(0, needed - self._refill(now)), self._flow)

    def full_s(self, now: float) -> float:
        return _seconds_to_flow(self._full - self._refill(now), self._flow)


class Sliding:
    """Exact: what was admitted in the trailing window (now - W, now] plus the cost must not exceed L."""

    def __init__(self, limit: int, window_s: float) -> None:
        self.limit = limit
        self._window_us = microseconds(window_s)
        self._at_us: list[int] = []  # times at which something was taken, each once; expired ones before `_first`
        self._costs: list[int] = []
        self._first = 0
        self._used = 0

    def _expire(self, now: float) -> int:
        now_us = microseconds(now)
        start_us = now_us - self._window_us
        while self._first < len(self._at_us) and self._at_us[self._first] <= start_us:
            self._used -= self._costs[self._first]
            self._first += 1
        if self._first > 1024 and self._first * 2 > len(self._at_us):
            del self._at_us[: self._first], self._costs[: self._first]
            self._first = 0
        return now_us

    def level(self, now: float) -> float:
        self._expire(now)
        return self.limit - self._used

    def take(self, cost: int, now: float) -> None:
        now_us = self._expire(now)
        self._used += cost
        if self._first < len(self._at_us) and self._at_us[-1] == now_us:
            self._costs[-1] += cost
        else:
            self._at_us.append(now_us)
            self._costs.append(cost)

    def refund(self, cost: int, at: float, now: float) -> None:
        self._expire(now)
        at_us = microseconds(at)
        index = bisect_left(self._at_us, at_us, lo=self._first)
        if index < len(self._at_us) and self._at_us[index] == at_us:
            back = min(cost, self._costs[index])
            self._costs[index] -= back
            self._used -= back

    def wait_s(self, cost: int, now: float) -> float:
        if cost > self.limit:
            return math.inf
        now_us = self._expire(now)
        excess = self._used + cost - self.limit
        if excess <= 0:
            return 0.0
        last = self._first
        while (excess := excess - self._costs[last]) > 0:
            last += 1
        return (self._at_us[last] + self._window_us - now_us) / 1e6

    def full_s(self, now: float) -> float:
        now_us = self._expire(now)
        for index in range(len(self._at_us) - 1, self._first - 1, -1):
            if self._costs[index]:
                return (self._at_us[index] + self._window_us - now_us) / 1e6
        return 0.0


class Fixed:
    """At most `slice_limit` in each slice of W/parts, counted anew from zero at its start.

    Args:
        slice_limit: L by default.
        phase: where in a slice the clock's zero lies, from 0 up to but without 1.
    """

    def __init__(
        self, limit: int, window_s: float, *, phase: float, parts: int = 1, slice_limit: int | None = None
    ) -> None:
        self.limit = limit
        self._slice_limit = limit if slice_limit is None else slice_limit
        self._window_us = microseconds(window_s)
        self._parts = parts
        self._phase_us = int(phase * self._window_us / parts)
        self._number: int | None = None
        self._used = 0

    def _slice(self, at: float) -> int:
        """The number of the slice that `at` lies in; exact where W isn't a multiple of its parts."""
        return (microseconds(at) + self._phase_us) * self._parts // self._window_us

    def _turn(self, now: float) -> int:
        number = self._slice(now)
        if number != self._number:
            self._number = number
            self._used = 0
        return number

    def level(self, now: float) -> float:
        self._turn(now)
        return self._slice_limit - self._used

    def take(self, cost: int, now: float) -> None:
        self._turn(now)
        self._used += cost

    def refund(self, cost: int, at: float, now: float) -> None:
        if self._turn(now) == self._slice(at):
            self._used = max(0, self._used - cost)

    def wait_s(self, cost: int, now: float) -> float:
        if cost > self._slice_limit:
            return math.inf
        return 0.0 if cost <= self.level(now) else self._to_next_s(now)

    def full_s(self, now: float) -> float:
        self._turn(now)
        return self._to_next_s(now) if self._used else 0.0

    def _to_next_s(self, now: float) -> float:
        start = -((self._slice(now) + 1) * self._window_us // -self._parts)  # rounded up
        return (start - self._phase_us - microseconds(now)) / 1e6


class Both:
    """Two budgets for one limit, such as slices within a minute: a call must fit both."""

    def __init__(self, inner: Budget, outer: Budget) -> None:
        self.limit = outer.limit
        self._each = (inner, outer)

    def level(self, now: float) -> float:
        return min(budget.level(now) for budget in self._each)

    def take(self, cost: int, now: float) -> None:
        for budget in self._each:
            budget.take(cost, now)

    def refund(self, cost: int, at: float, now: float) -> None:
        for budget in self._each:
            budget.refund(cost, at, now)

    def wait_s(self, cost: int, now: float) -> float:
        return max(budget.wait_s(cost, now) for budget in self._each)

    def full_s(self, now: float) -> float:
        return max(budget.full_s(now) for budget in self._each)


class InFlight:
    """At most L calls at a time. A call that ends is a refund; when the next one ends, nobody knows."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._held = 0

    def level(self, now: float) -> float:
        return self.limit - self._held

    def take(self, cost: int, now: float) -> None:
        self._held += cost

    def refund(self, cost: int, at: float, now: float) -> None:
        self._held = max(0, self._held - cost)

    def wait_s(self, cost: int, now: float) -> float:
        return math.inf if cost > self.limit else 0.0

    def full_s(self, now: float) -> float:
        return 0.0


def _seconds_to_flow(missing: int, flow: int) -> float:
    return -(missing // -flow) / 1e6  # rounded up to a microsecond: whoever waits so long isn't too early
