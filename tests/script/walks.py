"""Checks of the arithmetic that hold for any text of it: the real one passes, a broken one must not.

Each takes a `text` in place of lua/part_budget.lua (None = the real one) and fails by AssertionError.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.script.arithmetic import START_US, Arithmetic, Charge, Model, limits_of, near, whole_wait, worst
from tokenweir.terms import Limit

# A step: microseconds that pass (may be negative), cost, rank.
Step = tuple[int, int, int]


def follows_model(limit: Limit, steps: Sequence[Step], *, text: str | None = None) -> list[Charge]:
    """Every decision is the model's, and no window ever holds more than the limit."""
    budget, now = Arithmetic([limit], text=text), START_US
    model = Model(limit, now)
    budget.wait(now, {limit.name: 0})
    for pause_us, amount, rank in steps:
        now += pause_us
        model.move(now)
        unclear = near(limit, model.lack(amount, rank))
        cum = budget.stored(f"{limit.name}.cum")
        wait_us = budget.acquire(now, {limit.name: amount}, rank)
        granted = wait_us <= 0
        if not unclear:
            assert granted is model.fits(amount, rank), (now - START_US, amount, rank, wait_us)
        if granted:
            model.take(amount)
        else:
            assert budget.stored(f"{limit.name}.cum") == cum
        assert budget.used(now) == model.used()
        assert abs(budget.level(now) - float(model.level)) < max(1e-6, limit.limit * 1e-11)
        assert budget.stored("at") == str(model.at)
    bound = limit.window_us + limit.late_us
    assert worst(model.charges, bound) <= limit.limit
    return model.charges


def waits_are_exact(limit: Limit, steps: Sequence[Step], *, text: str | None = None) -> None:
    """At the end of a returned wait it is granted, and well before it isn't."""
    budget, now = Arithmetic([limit], text=text), START_US
    for pause_us, amount, rank in steps:
        now += abs(pause_us)
        wait_us = budget.acquire(now, {limit.name: amount}, rank)
        if wait_us <= 0 or wait_us == float("inf"):
            continue
        end = now + whole_wait(wait_us)
        # Rounding of a level is worth less than a microsecond of refill or two.
        early = end - 2 - int(limit.limit * 1e-11 / limit.rate)
        if early > now:
            assert budget.wait(early, {limit.name: amount}, rank) > 0, (pause_us, amount, rank)
        late = end + 1 + int(limit.limit * 1e-11 / limit.rate)
        now = end if budget.wait(end, {limit.name: amount}, rank) <= 0 else late
        assert budget.acquire(now, {limit.name: amount}, rank) <= 0, (pause_us, amount, rank)


def uncharges_its_own_slot(limit: Limit, steps: Sequence[tuple[int, int, int]], *, text: str | None = None) -> None:
    """What is given back leaves the slot it was charged to; a slot that has gone gives nothing back.

    A step: microseconds that pass, cost, which of the earlier charges is then given back in part.
    """
    budget, now = Arithmetic([limit], text=text), START_US
    model = Model(limit, now)
    budget.wait(now, {limit.name: 0})
    for pause_us, amount, which in steps:
        now += abs(pause_us)
        model.move(now)
        if budget.acquire(now, {limit.name: amount}) <= 0:
            model.take(amount)
        if not model.charges:
            continue
        index = which % len(model.charges)
        charge = model.charges[index]
        part = charge.amount // 2 + 1 if charge.amount else 0
        cum = budget.stored(f"{limit.name}.cum")
        budget.uncharge(now, {limit.name: part}, charge.at)
        if model.alive(charge):
            model.give_back(index, part)
        assert budget.used(now) == model.used()
        assert abs(budget.level(now) - float(model.level)) < max(1e-6, limit.limit * 1e-11)
        assert budget.stored(f"{limit.name}.cum") == cum
    assert worst(model.charges, limit.window_us + limit.late_us) <= limit.limit


def saturated(limits: Sequence[Limit], cost: dict[str, int], *, rank: int = 0, minutes: int = 10) -> dict[str, float]:
    """The share of each limit that endless requests of `cost` use, over whole windows from the second on."""
    budget, now = Arithmetic(limits), START_US
    window_us = limits[0].window_us
    end, grants = now + minutes * window_us, list[int]()
    while now < end:
        wait_us = budget.acquire(now, cost, rank)
        if wait_us <= 0:
            grants.append(now)
        now += max(0, int(wait_us))
    counted = sum(at >= START_US + 2 * window_us for at in grants)
    return {
        limit.name: counted * cost[limit.name] / limit.limit / (minutes - 2) for limit in limits if cost.get(limit.name)
    }


STANDARD = limits_of(rpm=500, tpm=30_000)
