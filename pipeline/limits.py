"""From what a provider allows to the numbers the gate counts with. Pure.

Every limit is kept twice in one script (lua/part_budget.lua): a token bucket paces, and a rolling window of
slots bounds what any provider window can hold. A bucket alone lets twice the limit through in a minute.

Symbols: L = limit per window W; J = longest time between our grant and the provider's count (`send_within_s`);
d = W/60, a slot; C = the bucket's capacity; r = its refill.
"""

from __future__ import annotations

import hashlib
import math

import msgspec

from pipeline.config import Deployment

# C as a share of L. `auto`: small enough for providers that count in sixths of a window.
_CAPACITY_SHARE = {"auto": 1 / 10, "continuous": 1 / 2}
SLOTS_PER_WINDOW = 60


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """One limit in the gate's units: microseconds, and requests or tokens.

    Attributes:
        limit: L. capacity: C, also the largest cost that needs no full bucket. rate: r per microsecond.
        cold: level when no state is found; below 0 is a debt. slots: how many the window needs at most.
    """

    name: str
    limit: int
    window_us: int
    late_us: int
    slot_us: int
    slots: int
    capacity: float
    rate: float
    cold: float

    @property
    def expected_use(self) -> float:
        """The share of L that can be used under saturation: W / (W + J + d)."""
        return self.window_us / (self.window_us + self.late_us + self.slot_us)

    @property
    def opening_s(self) -> float:
        """How long after a cold start the first request goes, at most."""
        return max(0.0, (1 - self.cold) / self.rate / 1e6)


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """All of a deployment that the gate must know; stands in Redis as JSON in the hash `limits`."""

    limits: tuple[Limit, ...]
    settlement: str
    start_within_us: int


def resolve(name: str, limit: int, *, window_s: float, send_within_s: float, enforcement: str) -> Limit:
    """The numbers for a limit of `limit` requests or tokens per `window_s`."""
    window_us, late_us = round(window_s * 1e6), round(send_within_s * 1e6)
    slot_us = max(1, round(window_us / SLOTS_PER_WINDOW))
    capacity = max(1.0, limit * _CAPACITY_SHARE[enforcement])
    rate = limit / (window_us + late_us + slot_us)
    return Limit(
        name=name,
        limit=limit,
        window_us=window_us,
        late_us=late_us,
        slot_us=slot_us,
        slots=math.ceil((window_us + late_us) / slot_us) + 1,
        capacity=capacity,
        rate=rate,
        # Whoever lost the state can't know what the last window held: C + r(W + J) must stay within L.
        cold=min(capacity, limit - capacity - rate * (window_us + late_us)),
    )


def terms(deployment: Deployment) -> Terms:
    """The terms of a configured deployment."""
    limits = [
        resolve(
            name,
            value,
            window_s=deployment.window_s,
            send_within_s=deployment.send_within_s,
            enforcement=deployment.enforcement,
        )
        for name, value in (("rpm", deployment.rpm), ("tpm", deployment.tpm))
        if value is not None
    ]
    settlement = "refund" if deployment.settlement == "refund" else "none"
    # Half of J for the way from the grant to our call, half for the way to the provider's counter.
    return Terms(limits=tuple(limits), settlement=settlement, start_within_us=round(deployment.send_within_s * 5e5))


def seed(deployment: Deployment) -> tuple[str, str, bytes]:
    """Name, fingerprint of the configured values, and terms as JSON, as the seed script takes them."""
    encoded = msgspec.json.encode(terms(deployment))
    return deployment.name, hashlib.sha256(encoded).hexdigest()[:16], encoded


def explain(deployment: Deployment) -> list[str]:
    """The resolved numbers of a deployment, one line a limit, for people."""
    lines = []
    for limit in terms(deployment).limits:
        per_s = limit.rate * 1e6
        lines.append(
            f"{deployment.name} {limit.name} {limit.limit:,} per {limit.window_us / 1e6:g} s: "
            f"burst {limit.capacity:,.0f}, refill {per_s:,.2f}/s, uses up to {limit.expected_use:.1%}, "
            f"worst window 100 %, opens {limit.opening_s:.1f} s after a cold start"
        )
    return lines
