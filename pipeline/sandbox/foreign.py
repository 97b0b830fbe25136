"""Another program that spends from the same key. Pure, seeded, driven by whatever clock its owner has.

It never needs a timer: before anything looks at the budgets at time t, `charge_until(limits, t)` lets everything that
has arrived by then happen, each at its own time. So it serves a server on the real clock as well as a simulation.
"""

import math
from collections.abc import Mapping
from random import Random

import msgspec

from pipeline.sandbox.limits import Limits, costs_of
from pipeline.sandbox.settings import Dimension


class ForeignCount(msgspec.Struct):
    """What the other program did so far.

    Attributes:
        tokens: admitted.
    """

    admitted: int = 0
    rejected: int = 0
    tokens: int = 0


class ForeignLoad:
    """A Poisson stream of calls that takes `share` of what the account allows, and gives up what doesn't fit.

    Sizes are geometric with mean `mean_tokens`, half of it prompt. The share is of the limit that calls of this size
    reach first.

    Args:
        limits: of the account, by dimension; rpm or tpm must be among them.
        window_s: W of the account.
        start_s: nothing arrives before.
        count: goes on with these numbers.

    Raises:
        ValueError: neither rpm nor tpm is limited, so a share means nothing.
    """

    def __init__(
        self,
        *,
        share: float,
        mean_tokens: int,
        limits: Mapping[Dimension, int],
        window_s: float,
        seed: int,
        start_s: float = 0.0,
        count: ForeignCount | None = None,
    ) -> None:
        cost: dict[Dimension, int] = {"rpm": 1, "tpm": mean_tokens}
        calls_per_window = [limits[name] / each for name, each in cost.items() if name in limits]
        if not calls_per_window:
            raise ValueError("foreign load is a share of rpm or tpm, and neither is limited")
        self.count = count or ForeignCount()
        self._per_s = share * min(calls_per_window) / window_s
        self._mean_tokens = mean_tokens
        self._dice = Random(f"{seed}/foreign")
        self._next_s = self._after(start_s)

    def charge_until(self, limits: Limits, now: float) -> None:
        """Let every call that has arrived by `now` be judged, in order of time."""
        while self._next_s <= now:
            tokens = self._size()
            costs = costs_of(prompt_tokens=tokens // 2, output_tokens=tokens - tokens // 2)
            # Its calls in flight are limited by nobody here: they have no length.
            if limits.charge({**costs, "max_in_flight": 0}, self._next_s).admitted:
                self.count.admitted += 1
                self.count.tokens += tokens
            else:
                self.count.rejected += 1
            self._next_s = self._after(self._next_s)

    def _after(self, at_s: float) -> float:
        return at_s + self._dice.expovariate(self._per_s) if self._per_s else math.inf

    def _size(self) -> int:
        if self._mean_tokens == 1:
            return 1
        return 1 + int(math.log(1 - self._dice.random()) / math.log(1 - 1 / self._mean_tokens))
