"""What an account admits: its dimensions, each under the mode in which its provider counts. Pure; `now` is an argument.

| mode | requests | tokens |
|---|---|---|
| `bucket` | capacity L, refill L per W | the same |
| `bucket/6` | capacity L/6, refill L per W | the same |
| `sliding` | at most L in any trailing W | the same |
| `fixed` | at most L in each window, phase unknown | the same |
| `10s` | at most L/6 in each W/6 and L in each W, phases unknown | `fixed` |
| `1s` | at most L/60, but one, in each W/60 and L in each W, phases unknown | `fixed` |

Day limits are kept over 1440 W: in a bucket of capacity L under both bucket modes, in fixed days under the slices.
"""

from collections.abc import Mapping
from random import Random
from typing import assert_never

import msgspec

from pipeline.sandbox.modes import Both, Bucket, Budget, Fixed, InFlight, Sliding
from pipeline.sandbox.settings import Dimension, Enforcement

__all__ = ["DAYS", "TOKENS", "Dimension", "Limits", "Verdict", "costs_of"]

_WINDOWS_A_DAY = 1440
TOKENS: frozenset[Dimension] = frozenset({"tpm", "itpm", "otpm", "tpd"})
DAYS: frozenset[Dimension] = frozenset({"rpd", "tpd"})


class Verdict(msgspec.Struct, frozen=True):
    """What became of a call.

    Attributes:
        short: the dimension that refused it (the one with the longest wait), None when admitted.
        wait_s: until the call would fit if nobody else came; infinite when it never could; 0 when the account has too
            many calls in flight, since nobody knows when one of them ends.
    """

    short: Dimension | None = None
    wait_s: float = 0.0

    @property
    def admitted(self) -> bool:
        return self.short is None


def costs_of(*, prompt_tokens: int, output_tokens: int) -> dict[Dimension, int]:
    """What one call costs in every dimension."""
    tokens = prompt_tokens + output_tokens
    return {
        "rpm": 1,
        "tpm": tokens,
        "itpm": prompt_tokens,
        "otpm": output_tokens,
        "rpd": 1,
        "tpd": tokens,
        "max_in_flight": 1,
    }


class Limits:
    """All budgets of one account; a call is charged to each or to none.

    Args:
        limits: L by dimension; those it lacks aren't limited.
        window_s: W, the provider's minute.
        seed: of the phases of fixed windows and slices, one for each dimension.
    """

    def __init__(self, mode: Enforcement, limits: Mapping[Dimension, int], window_s: float, *, seed: int = 0) -> None:
        self.budgets: dict[Dimension, Budget] = {
            name: _budget(mode, name, limit, window_s, Random(f"{seed}/{name}")) for name, limit in limits.items()
        }

    def charge(self, costs: Mapping[Dimension, int], now: float) -> Verdict:
        """Admit and count the call, or refuse it and count nothing.

        Args:
            costs: by dimension; one for each budget, others are ignored.
        """
        short = [name for name, budget in self.budgets.items() if budget.level(now) < costs[name]]
        if short:
            waits = {name: self.budgets[name].wait_s(costs[name], now) for name in short}
            worst = max(short, key=waits.__getitem__)
            return Verdict(short=worst, wait_s=waits[worst])
        for name, budget in self.budgets.items():
            budget.take(costs[name], now)
        return Verdict()

    def refund(self, costs: Mapping[Dimension, int], at: float, now: float) -> None:
        """Give back what a call admitted at `at` turned out not to use.

        A bucket is filled by it, up to its capacity; a window counts it no longer, if the call still stands in it.

        Args:
            costs: by dimension; a dimension that it lacks gets nothing back.
        """
        for name, budget in self.budgets.items():
            if back := costs.get(name, 0):
                budget.refund(back, at, now)

    def end_call(self, now: float) -> None:
        """One call is in flight no longer."""
        self.refund({"max_in_flight": 1}, now, now)


_DAY_MODES: dict[Enforcement, Enforcement] = {"bucket/6": "bucket", "10s": "fixed", "1s": "fixed"}
_TOKEN_MODES: dict[Enforcement, Enforcement] = {"10s": "fixed", "1s": "fixed"}


def _budget(mode: Enforcement, name: Dimension, limit: int, window_s: float, dice: Random) -> Budget:
    if name == "max_in_flight":
        return InFlight(limit)
    if name in DAYS:
        mode, window_s = _DAY_MODES.get(mode, mode), window_s * _WINDOWS_A_DAY
    elif name in TOKENS:
        mode = _TOKEN_MODES.get(mode, mode)
    match mode:
        case "bucket":
            return Bucket(limit, window_s)
        case "bucket/6":
            return Bucket(limit, window_s, parts=6)
        case "sliding":
            return Sliding(limit, window_s)
        case "fixed":
            return Fixed(limit, window_s, phase=dice.random())
        case "10s":
            return _sliced(limit, window_s, 6, dice)
        case "1s":
            return _sliced(limit, window_s, 60, dice)
        case _:
            assert_never(mode)


def _sliced(limit: int, window_s: float, parts: int, dice: Random) -> Budget:
    # A limit below the number of slices leaves one call in each: no provider sells an account that admits nothing.
    share = max(1, limit // parts)
    slices = Fixed(limit, window_s, phase=dice.random(), parts=parts, slice_limit=share)
    return Both(slices, Fixed(limit, window_s, phase=dice.random()))
