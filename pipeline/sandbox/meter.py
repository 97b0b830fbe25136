"""The fullest window of one dimension, whatever the mode that admitted it. Pure.

It shares no arithmetic with the modes: every trailing window is summed up anew from what was admitted, so a fault in
the enforcement shows as a share above the mode's own bound.
"""

import heapq


class WorstWindow:
    """Follows the sum of admitted costs in the trailing window (t - W, t] and keeps its highest value.

    Only an admission can raise that sum, so it is compared at each of them and nowhere else. Times are seconds, counted
    in whole microseconds.
    """

    def __init__(self, limit: int, window_s: float) -> None:
        self._limit = limit
        self._window_us = round(window_s * 1e6)
        self._counted: list[tuple[int, int]] = []  # a heap of (time, cost): refunds go among what was admitted before
        self._sum = 0
        self._worst = 0

    def record(self, cost: int, now: float) -> None:
        """Count an admitted cost; in order of time."""
        now_us = self._expire(now)
        heapq.heappush(self._counted, (now_us, cost))
        self._sum += cost
        self._worst = max(self._worst, self._sum)

    def refund(self, cost: int, at: float, now: float) -> None:
        """Stop counting `cost` of what was admitted at `at`; the highest sum until now stands."""
        now_us = self._expire(now)
        at_us = round(at * 1e6)
        if at_us > now_us - self._window_us:
            heapq.heappush(self._counted, (at_us, -cost))
            self._sum -= cost

    def _expire(self, now: float) -> int:
        now_us = round(now * 1e6)
        while self._counted and self._counted[0][0] <= now_us - self._window_us:
            self._sum -= heapq.heappop(self._counted)[1]
        return now_us

    def share(self, now: float) -> float:
        """What the window that ends now holds, as a share of the limit."""
        self._expire(now)
        return self._sum / self._limit

    @property
    def worst(self) -> float:
        """What the fullest window ever held, as a share of the limit; 1.0 is exactly the limit."""
        return self._worst / self._limit
