"""From what a provider allows to the numbers the gate counts with. Pure.

Every limit is kept twice in one script (lua/part_budget.lua): a token bucket paces, and a rolling window of
slots bounds what any provider window can hold. A bucket alone lets twice the limit through in a minute.

Symbols: L = limit per window W; J = longest time between our grant and the provider's count (`send_within_s`);
d = W/60, a slot; C = the bucket's capacity; r = its refill; w = the slice of a provider that counts in parts of W.
"""

from __future__ import annotations

import hashlib
import math
from typing import Annotated, Final, Literal

import msgspec

Enforcement = Literal["auto", "continuous", "quantised:10s", "quantised:1s"]
Settlement = Literal["auto", "none", "refund"]

# What can be limited per window, and what per day; the order is the one people read them in.
WINDOW_LIMITS: Final = ("rpm", "tpm", "itpm", "otpm")
DAY_LIMITS: Final = ("rpd", "tpd")

# C as a share of L. `auto`: small enough for providers that count in sixths of a window.
_CAPACITY_SHARE: Final = {"auto": 1 / 10, "continuous": 1 / 2}
# Of a window of 60 s, slices of 10 s and of 1 s.
_SLICES: Final = {"quantised:10s": 6, "quantised:1s": 60}
_SLOTS_PER_WINDOW: Final = 60
_DAY_S: Final = 86_400
# Quarters of an hour, so that a day that begins at any time zone's midnight begins with a slot.
_SLOTS_PER_DAY: Final = 96
# Slices are so short that every tenth of a second on the way costs a percent of them.
_SEND_WITHIN_S: Final = {"quantised:10s": 0.2, "quantised:1s": 0.2}


class Allowed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a provider allows one key to do with one model, as an operator states it.

    Attributes:
        limits: by name (`WINDOW_LIMITS`, `DAY_LIMITS`): requests, or tokens in all, in the prompt, in the output.
        max_in_flight: calls at the same time; None = no such limit.
        window_s: the provider's window, of all but the day limits.
        send_within_s: J; None = 1 s, or 0.2 s where the provider counts in slices.
        enforcement: how the provider counts; `auto` is safe against all but slices.
        day_resets_at: `HH:MM` in UTC where the provider's day begins; None = any 24 hours count.
    """

    limits: dict[str, Annotated[int, msgspec.Meta(ge=1)]]
    max_in_flight: Annotated[int, msgspec.Meta(ge=1)] | None = None
    window_s: float = 60.0
    send_within_s: float | None = None
    enforcement: Enforcement = "auto"
    settlement: Settlement = "auto"
    day_resets_at: str | None = None

    @property
    def late_s(self) -> float:
        """J, with its default."""
        return self.send_within_s or _SEND_WITHIN_S.get(self.enforcement, 1.0)


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """One limit in the gate's units: microseconds, and requests or tokens.

    Attributes:
        limit: L. capacity: C, also the largest cost that needs no full bucket. rate: r per microsecond.
        cold: level when no state is found; below 0 is a debt.
        paced: whether the bucket counts too; day limits have their window only.
        resets_us: where in the day a calendar window begins; -1 = the window rolls.
    """

    name: str
    limit: int
    window_us: int
    late_us: int
    slot_us: int
    capacity: float
    rate: float
    cold: float
    paced: bool = True
    resets_us: int = -1

    @property
    def expected_use(self) -> float:
        """The share of L that can be used under saturation."""
        return min(1.0, self.rate * self.window_us / self.limit) if self.paced else 1.0

    @property
    def opening_s(self) -> float:
        """How long after a cold start the first request goes, at most."""
        return max(0.0, (1 - self.cold) / self.rate / 1e6) if self.paced else 0.0


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """All of a deployment that the gate must know; stands in Redis as JSON in the hash `limits`.

    Attributes:
        max_in_flight: 0 = no such limit. start_within_us: from the grant to the start of its call, J/2.
        feedback: what the provider says is left corrects the level downwards.
        allowed: what all this was worked out from, so that it can be worked out again with one value changed.
    """

    limits: tuple[Limit, ...]
    settlement: Settlement
    start_within_us: int
    max_in_flight: int = 0
    feedback: bool = False
    allowed: Allowed


def resolve(name: str, limit: int, allowed: Allowed) -> Limit:
    """The numbers for `limit` requests or tokens per window, or per day, under a provider that counts as stated."""
    late_us = round(allowed.late_s * 1e6)
    if name in DAY_LIMITS:
        return _of_day(name, limit, late_us, allowed.day_resets_at)
    window_us = round(allowed.window_s * 1e6)
    slot_us = max(1, round(window_us / _SLOTS_PER_WINDOW))
    rate = limit / (window_us + late_us + slot_us)
    slices = _SLICES.get(allowed.enforcement, 0)
    sliced = slices > 0 and name == "rpm"
    capacity = max(1.0, limit * _CAPACITY_SHARE.get(allowed.enforcement, _CAPACITY_SHARE["auto"]))
    if sliced:
        capacity, rate = 1.0, min(rate, _slice_rate(limit / slices, window_us / slices + late_us))
    # Whoever lost the state can't know what the last window held: C + r(W + J) must stay within L.
    cold = min(capacity, limit - capacity - rate * (window_us + late_us), 0.0 if sliced else math.inf)
    return Limit(
        name=name,
        limit=limit,
        window_us=window_us,
        late_us=late_us,
        slot_us=slot_us,
        capacity=capacity,
        rate=rate,
        cold=cold,
    )


def terms(allowed: Allowed) -> Terms:
    """All numbers for a deployment.

    Raises:
        ValueError: no limit at all, an unknown one, or a time of day that is none.
    """
    known = (*WINDOW_LIMITS, *DAY_LIMITS)
    unknown = sorted(set(allowed.limits) - set(known))
    if unknown:
        raise ValueError(f"unknown limit {unknown[0]!r}; known: {', '.join(known)}, max_in_flight")
    if not allowed.limits:
        raise ValueError(f"no limit given; set at least one of {', '.join(known)}")
    return Terms(
        limits=tuple(resolve(name, allowed.limits[name], allowed) for name in known if name in allowed.limits),
        settlement=allowed.settlement,
        # Half of J for the way from the grant to our call, half for the way to the provider's counter.
        start_within_us=round(allowed.late_s * 5e5),
        max_in_flight=allowed.max_in_flight or 0,
        feedback=allowed.enforcement == "continuous",
        allowed=allowed,
    )


def seed_row(name: str, terms: Terms) -> tuple[str, str, bytes]:
    """A deployment as lua/limits_seed.lua takes it: its name, a fingerprint of its terms, and the terms as JSON."""
    encoded = msgspec.json.encode(terms)
    return name, hashlib.sha256(encoded).hexdigest()[:16], encoded


def _slice_rate(requests: float, slice_us: float) -> float:
    """The refill at which a bucket of 1 lets at most `requests` whole ones through in any `slice_us`.

    They are counted: of 1 + r * slice the whole part goes through, so just below the next whole number will do.
    """
    return max(1, math.floor(requests)) * (1 - 1e-6) / slice_us


def _of_day(name: str, limit: int, late_us: int, resets_at: str | None) -> Limit:
    window_us = _DAY_S * 1_000_000
    return Limit(
        name=name,
        limit=limit,
        window_us=window_us,
        late_us=late_us,
        slot_us=window_us // _SLOTS_PER_DAY,
        capacity=float(limit),
        rate=limit / window_us,
        cold=float(limit),
        paced=False,
        resets_us=-1 if resets_at is None else _time_of_day_us(resets_at),
    )


def _time_of_day_us(text: str) -> int:
    hours, colon, minutes = text.partition(":")
    if not (colon and hours.isdecimal() and minutes.isdecimal() and int(hours) < 24 and int(minutes) < 60):
        raise ValueError(f"day_resets_at {text!r} is no time of day such as '08:00'")
    return (int(hours) * 60 + int(minutes)) * 60_000_000
