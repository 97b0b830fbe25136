"""Enforcement once more, as lists of calls summed up anew each time: too simple to be wrong, too slow to be used.

Times are multiples of 1/1024 s, exact in floats, and a window is 6 s, so nothing is rounded on the models' side but
where the sandbox's whole microseconds are the rule.
"""

from fractions import Fraction

TICK_S = 1 / 1024
WINDOW_S = 6
WINDOW_US = 6_000_000


def whole_us(seconds: float) -> int:
    """The sandbox's resolution of time."""
    return round(seconds * 1e6)


class Flow:
    """What a bucket holds, in fractions."""

    def __init__(self, limit: int, parts: int) -> None:
        self._rate = Fraction(limit, WINDOW_US)
        self._full = max(Fraction(limit, parts), Fraction(1))
        self._held, self._at_us = self._full, 0

    def room(self, now: float) -> Fraction:
        us = whole_us(now)
        self._held, self._at_us = min(self._full, self._held + (us - self._at_us) * self._rate), us
        return self._held

    def take(self, cost: int, now: float) -> None:
        self._held = self.room(now) - cost

    def refund(self, cost: int, at: float, now: float) -> None:
        self._held = min(self._full, self.room(now) + cost)


class Calls:
    """What stands in a list of calls: those of the last W, or of the slice that `now` lies in."""

    def __init__(self, limit: int, *, parts: int | None = None, phase: Fraction = Fraction(0)) -> None:
        self._limit, self._parts, self._phase = limit, parts, phase
        self._taken: list[tuple[float, int]] = []

    def _counts(self, at: float, now: float) -> bool:
        if self._parts is None:
            return whole_us(at) > whole_us(now) - WINDOW_US
        length = Fraction(WINDOW_US, self._parts)
        offset = int(self._phase * length)
        return (whole_us(at) + offset) // length == (whole_us(now) + offset) // length

    def room(self, now: float) -> Fraction:
        return Fraction(self._limit - sum(cost for at, cost in self._taken if self._counts(at, now)))

    def take(self, cost: int, now: float) -> None:
        self._taken.append((now, cost))

    def refund(self, cost: int, at: float, now: float) -> None:
        self._taken.append((at, -cost))
