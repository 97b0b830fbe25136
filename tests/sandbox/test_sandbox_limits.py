"""Enforcement against models that are too simple to be wrong. Times are multiples of 1/1024 s: exact in floats."""

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.sandbox.limits import Bucket, Limits, Sliding
from pipeline.sandbox.settings import Enforcement

_TICK = 1 / 1024
_WINDOW_S = 6
STEPS = st.lists(st.tuples(st.integers(0, 4096), st.integers(1, 60)), max_size=120)


@given(steps=STEPS, limit=st.integers(20, 100))
def test_sliding_admits_what_the_trailing_window_has_room_for(steps: list[tuple[int, int]], limit: int) -> None:
    """A call is admitted exactly when the last W seconds and the call together stay within the limit."""
    limits = Limits("sliding", {"tokens": limit}, _WINDOW_S)
    admitted: list[tuple[float, int]] = []
    now = 0.0
    for pause, cost in steps:
        now += pause * _TICK
        used = sum(past for at, past in admitted if now - _WINDOW_S < at <= now)

        verdict = limits.charge({"tokens": cost}, now)

        assert verdict.admitted is (used + cost <= limit)
        assert limits.budgets["tokens"].level(now) == limit - used - (cost if verdict.admitted else 0)
        if verdict.admitted:
            admitted.append((now, cost))


@given(steps=STEPS, limit=st.integers(20, 100))
def test_bucket_admits_what_has_flowed_in(steps: list[tuple[int, int]], limit: int) -> None:
    """A call is admitted exactly when a bucket of capacity L, refilled at L per W, holds its cost."""
    limits = Limits("bucket", {"tokens": limit}, _WINDOW_S)
    held, ticks, at_us = Fraction(limit), 0, 0
    for pause, cost in steps:
        ticks += pause
        now = ticks * _TICK
        now_us = round(now * 1e6)
        held = min(Fraction(limit), held + Fraction(limit * (now_us - at_us), _WINDOW_S * 1_000_000))
        at_us = now_us

        verdict = limits.charge({"tokens": cost}, now)

        assert verdict.admitted is (cost <= held)
        held -= cost if verdict.admitted else 0


@pytest.mark.parametrize("mode", ["bucket", "sliding"])
@given(steps=STEPS)
def test_the_stated_wait_is_right(mode: Enforcement, steps: list[tuple[int, int]]) -> None:
    """A refused caller who waits as long as stated is admitted, and one who comes a little earlier isn't."""
    limits = Limits(mode, {"tokens": 60}, _WINDOW_S)
    now = 0.0
    for pause, cost in steps:
        now += pause * _TICK
        verdict = limits.charge({"tokens": cost}, now)
        if not verdict.admitted:
            assert verdict.wait_s > 0
            if verdict.wait_s > 0.001:
                assert not limits.charge({"tokens": cost}, now + verdict.wait_s - 0.0005).admitted
            now += verdict.wait_s + 0.000001
            assert limits.charge({"tokens": cost}, now).admitted


@pytest.mark.parametrize("mode", ["bucket", "sliding"])
def test_a_refusal_takes_nothing(mode: Enforcement) -> None:
    """All or nothing: a call short of tokens uses up no request, and one short of requests no tokens."""
    limits = Limits(mode, {"requests": 2, "tokens": 100}, 60)

    assert limits.charge({"requests": 1, "tokens": 80}, 0).admitted
    assert limits.charge({"requests": 1, "tokens": 30}, 0).short == "tokens"
    assert limits.budgets["requests"].level(0) == 1
    assert limits.charge({"requests": 1, "tokens": 10}, 0).admitted
    assert limits.charge({"requests": 1, "tokens": 1}, 0).short == "requests"
    assert limits.budgets["tokens"].level(0) == 10


@pytest.mark.parametrize("mode", ["bucket", "sliding"])
def test_more_than_the_limit_never_fits(mode: Enforcement) -> None:
    """A call larger than the limit is refused with an infinite wait, and names the dimension."""
    verdict = Limits(mode, {"requests": 5, "tokens": 100}, 60).charge({"requests": 1, "tokens": 101}, 0)

    assert (verdict.short, verdict.wait_s) == ("tokens", math.inf)


def test_a_bucket_lets_nearly_twice_the_limit_through_and_a_sliding_window_doesnt() -> None:
    """The two modes differ as real providers do: after a full bucket its refill comes on top."""
    bucket, sliding = (Limits(mode, {"tokens": 600}, 60) for mode in ("bucket", "sliding"))

    admitted = [
        sum(limits.charge({"tokens": 1}, 100 + number / 20).admitted for number in range(1199))
        for limits in (bucket, sliding)
    ]

    assert admitted == [1199, 600]


@pytest.mark.parametrize("kind", [Bucket, Sliding])
def test_reset_says_when_nothing_counts_any_more(kind: type[Bucket] | type[Sliding]) -> None:
    """After the stated reset time the whole limit is free again."""
    budget = kind(100, 60)
    assert budget.full_s(0) == 0
    budget.take(60, 0)

    assert budget.level(budget.full_s(0)) == 100


def test_a_long_life_doesnt_grow_a_sliding_window() -> None:
    """Memory follows the window, not the age."""
    budget = Sliding(10, 1)

    for second in range(100_000):
        budget.take(1, float(second))

    assert len(budget._at) < 4096
