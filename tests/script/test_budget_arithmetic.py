"""The budget's arithmetic in Redis's own Lua, on a clock of ours, against a naive list of charges."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.script.arithmetic import START_US, Arithmetic, Charge, limits_of, worst
from tests.script.walks import (
    Step,
    follows_model,
    uncharges_its_own_slot,
    waits_are_exact,
)
from tokenweir.terms import Limit

QUICK = settings(max_examples=40, deadline=None)


@st.composite
def a_limit(draw: st.DrawFn) -> Limit:
    return limits_of(
        rpm=draw(st.sampled_from([1, 3, 10, 60, 500, 30_000])),
        window_s=draw(st.sampled_from([0.05, 1, 6, 60])),
        send_within_s=draw(st.sampled_from([0.1, 1])),
        enforcement=draw(st.sampled_from(["auto", "continuous"])),
    )[0]


def steps_of(limit: Limit, draw: st.DrawFn, *, back: bool = True) -> list[Step]:
    """Pauses from nothing to long quiet spells, now and then backwards; costs from nothing to the whole limit."""
    slot_us, window_us = limit.slot_us, limit.window_us
    pauses = [st.integers(0, 2 * slot_us), st.integers(0, 2 * slot_us), st.integers(0, window_us)]
    pauses += [st.integers(0, 100 * window_us), *([st.integers(-5 * slot_us, 0)] if back else [])]
    small, large = max(1, limit.limit // 50), limit.limit + 1
    costs = [st.integers(0, small), st.integers(0, max(1, limit.limit // 10)), st.integers(0, large)]
    return draw(st.lists(st.tuples(st.one_of(pauses), st.one_of(costs), st.integers(0, 2)), min_size=1, max_size=60))


@QUICK
@given(data=st.data(), limit=a_limit())
def test_grants_exactly_when_a_plain_list_of_charges_would(data: st.DataObject, limit: Limit) -> None:
    """Whatever comes when, for whatever class: granted if and only if level, window and floors have room."""
    follows_model(limit, data.draw(st.composite(lambda draw: steps_of(limit, draw))()))


@QUICK
@given(data=st.data(), limit=a_limit())
def test_a_returned_wait_is_the_time_until_it_fits(data: st.DataObject, limit: Limit) -> None:
    """A timer set to the returned wait finds room, and one that is set shorter doesn't."""
    waits_are_exact(limit, data.draw(st.composite(lambda draw: steps_of(limit, draw, back=False))()))


@QUICK
@given(data=st.data(), limit=a_limit())
def test_given_back_charges_leave_the_slot_they_were_charged_to(data: st.DataObject, limit: Limit) -> None:
    """What is given back is the very charge, never fresh credit: no window gets more than its limit."""
    uncharges_its_own_slot(limit, data.draw(st.composite(lambda draw: steps_of(limit, draw, back=False))()))


def flooded(limit: Limit, seed: int, *, windows: int = 5, largest: float = 0.1, losses: int = 0) -> list[Charge]:
    """The charges when far more is asked for than fits, with bursts and pauses, all of it by one random seed."""
    chance = random.Random(seed)
    budget, now, charges = Arithmetic([limit]), START_US, list[Charge]()
    budget.wait(now, {limit.name: 0})
    now += 20 * limit.window_us  # warm and full
    end = now + windows * limit.window_us
    lost = sorted(chance.randrange(now, end) for _ in range(losses))
    most = max(1, int(largest * limit.limit))
    while now < end:
        amount = chance.choice([1, max(1, most // 10), most])
        wait_us = budget.acquire(now, {limit.name: amount}, 0)
        if wait_us <= 0:
            charges.append(Charge(now, amount))
            continue
        now += min(int(wait_us), 1 + int(chance.random() * limit.window_us / 20))
        if lost and now >= lost[0]:
            now = lost.pop(0)
            budget.lose()
    return charges


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**9), limit=a_limit(), largest=st.sampled_from([0.02, 0.1, 0.5]))
def test_no_provider_window_holds_more_than_the_limit(seed: int, limit: Limit, largest: float) -> None:
    """However long each call takes on its way, up to J, no window as the provider counts it exceeds the limit."""
    chance = random.Random(seed)

    charges = flooded(limit, seed, largest=largest)

    counted = [Charge(at + chance.randint(0, limit.late_us), amount) for at, amount in charges]
    assert worst(charges, limit.window_us + limit.late_us) <= limit.limit
    assert worst(counted, limit.window_us) <= limit.limit


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**9), limit=a_limit())
def test_four_losses_of_all_state_stay_within_the_limit(seed: int, limit: Limit) -> None:
    """Redis may come back empty four times in a row: with requests up to the burst no window exceeds the limit."""
    largest = limit.capacity / limit.limit

    charges = flooded(limit, seed, largest=largest, losses=4)

    assert worst(charges, limit.window_us + limit.late_us) <= limit.limit


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 10**9),
    old=st.sampled_from([60.0, 6.0, 1.0]),
    new=st.sampled_from([60.0, 6.0, 1.0, 0.5]),
    rpm=st.sampled_from([10, 100, 1000]),
)
def test_a_window_changed_while_running_admits_no_more(seed: int, old: float, new: float, rpm: int) -> None:
    """An operator may change limit and window live: what was charged before counts in the new window."""
    before, after = limits_of(rpm=100, window_s=old)[0], limits_of(rpm=rpm, window_s=new)[0]
    chance, charges = random.Random(seed), list[Charge]()
    budget, now = Arithmetic([before]), START_US
    budget.wait(now, {"rpm": 0})
    now += before.window_us * 20

    def ask(most: int) -> float:
        amount = chance.randint(1, most)
        wait_us = budget.acquire(now, {"rpm": amount})
        if wait_us <= 0:
            charges.append(Charge(now, amount))
        return wait_us

    for _ in range(40):
        now += int(chance.random() * before.window_us / 20)
        ask(10)

    budget.change([after])
    known_since = now - before.window_us - before.late_us
    until = now + after.window_us + after.late_us
    while now < until:
        granted = len(charges)
        wait_us = ask(max(1, rpm // 20))
        since = max(known_since, now - after.window_us - after.late_us)
        assert len(charges) == granted or sum(amount for at, amount in charges if at > since) <= rpm
        now += max(1, min(int(wait_us), after.window_us // 10))
