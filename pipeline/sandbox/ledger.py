"""The judge's book: every call with its time, tokens and fate, and what the account really let through.

Pure; times are seconds of one clock that never steps back.
"""

from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence

import msgspec

from pipeline.sandbox.meter import WorstWindow

_SECONDS_KEPT = 86_400


class Used(msgspec.Struct, frozen=True):
    """What was admitted in a range of time."""

    requests: int
    tokens: int


class Worst(msgspec.Struct, frozen=True):
    """The fullest window ever, as a share of each limit."""

    requests: float
    tokens: float


class Ledger:
    """Counts of all calls since the start, and the last `keep` admitted ones one by one (16 bytes each).

    Totals and the worst window stay exact over the whole life; only `used` is confined to the calls still kept.
    """

    def __init__(self, *, requests: int, tokens: int, window_s: float, keep: int = 1_000_000) -> None:
        self._keep = keep
        self.measure_anew(requests=requests, tokens=tokens, window_s=window_s)
        self._at = array("d")  # arrivals of admitted calls
        self._total = array("q")  # tokens admitted up to and including each of them
        self._dropped_total = 0
        self._seconds: deque[list[int]] = deque(maxlen=_SECONDS_KEPT)
        self.admitted = 0
        self.rejected = 0

    def measure_anew(self, *, requests: int, tokens: int, window_s: float) -> None:
        """Forget the worst window and measure by these limits."""
        self._requests = WorstWindow(requests, window_s)
        self._tokens = WorstWindow(tokens, window_s)

    @property
    def calls(self) -> int:
        return self.admitted + self.rejected

    def record(self, now: float, tokens: int, *, admitted: bool) -> None:
        """Enter one call, in the order of arrival."""
        second = int(now)
        if not self._seconds or self._seconds[-1][0] != second:
            self._seconds.append([second, 0, 0])
        if not admitted:
            self.rejected += 1
            self._seconds[-1][2] += 1
            return
        self.admitted += 1
        self._seconds[-1][1] += 1
        self._total.append(self._up_to(len(self._at)) + tokens)
        self._at.append(now)
        self._requests.record(1, now)
        self._tokens.record(tokens, now)
        self._trim()

    def refund(self, tokens: int, at: float, now: float) -> None:
        """The account counts so many tokens of the call admitted at `at` no longer; what was entered stays."""
        self._tokens.refund(tokens, at, now)

    def _up_to(self, count: int) -> int:
        """Tokens of everything before the kept call number `count`."""
        return self._total[count - 1] if count else self._dropped_total

    def _trim(self) -> None:
        # In steps of a tenth, since each moves all that is kept.
        if len(self._at) <= self._keep + self._keep // 10:
            return
        surplus = len(self._at) - self._keep
        self._dropped_total = self._up_to(surplus)
        del self._at[:surplus], self._total[:surplus]

    def worst_window(self) -> Worst:
        """The fullest trailing window (t - W, t] of admitted calls, refunds until then deducted; 1.0 is the limit."""
        return Worst(requests=self._requests.worst, tokens=self._tokens.worst)

    def total(self) -> Used:
        """All that was ever admitted."""
        return Used(requests=self.admitted, tokens=self._up_to(len(self._at)))

    def used(self, from_s: float, to_s: float) -> Used:
        """What was admitted from `from_s` up to but without `to_s`, so that ranges side by side add up."""
        low = bisect_left(self._at, from_s)
        high = max(low, bisect_left(self._at, to_s))
        return Used(requests=high - low, tokens=self._up_to(high) - self._up_to(low))

    def per_second(self) -> Sequence[Sequence[int]]:
        """`[second, admitted, rejected]` for each second of the last day that had a call, oldest first."""
        return list(self._seconds)
