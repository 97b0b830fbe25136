"""Each way of enforcing a limit against a model that is too simple to be wrong."""

from fractions import Fraction
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.sandbox.limits import Limits, costs_of
from pipeline.sandbox.meter import WorstWindow
from pipeline.sandbox.modes import Both, Bucket, Budget, Fixed, InFlight, Sliding
from pipeline.sandbox.settings import DIMENSIONS, Enforcement
from tests.sandbox.models import TICK_S, WINDOW_S, Calls, Flow

MODES: tuple[Enforcement, ...] = get_args(Enforcement)
# Ticks of pause, cost, and the share in eighths that is given back at the next step.
STEPS = st.lists(st.tuples(st.integers(0, 4096), st.integers(1, 60), st.integers(0, 8)), max_size=100)
PHASES = st.fractions(0, Fraction(1023, 1024), max_denominator=1024)


def _follow(budget: Budget, model: Flow | Calls, steps: list[tuple[int, int, int]]) -> None:
    """Assert that `budget` admits and holds exactly what `model` does, through calls and refunds."""
    now = 0.0
    back: tuple[int, float] | None = None
    for pause, cost, eighths in steps:
        now += pause * TICK_S
        if back is not None:
            budget.refund(*back, now)
            model.refund(*back, now)
            back = None
        room = model.room(now)
        assert budget.level(now) == float(room)
        if cost <= room:
            assert budget.wait_s(cost, now) == 0
            budget.take(cost, now)
            model.take(cost, now)
            if eighths:
                back = (cost * eighths // 8, now)


@given(steps=STEPS, limit=st.integers(20, 100), parts=st.sampled_from([1, 6]))
def test_a_bucket_holds_what_has_flowed_in(steps: list[tuple[int, int, int]], limit: int, parts: int) -> None:
    """A bucket of L or L/6 holds exactly what flowed in and came back, never more than its capacity."""
    _follow(Bucket(limit, WINDOW_S, parts=parts), Flow(limit, parts), steps)


@given(steps=STEPS, limit=st.integers(20, 100))
def test_a_sliding_window_counts_the_last_w_seconds(steps: list[tuple[int, int, int]], limit: int) -> None:
    """What was admitted in the last W seconds counts, less what was given back of it, and nothing else."""
    _follow(Sliding(limit, WINDOW_S), Calls(limit), steps)


@given(steps=STEPS, limit=st.integers(20, 100), phase=PHASES, parts=st.sampled_from([1, 6, 7, 60]))
def test_fixed_windows_count_from_zero(
    steps: list[tuple[int, int, int]], limit: int, phase: Fraction, parts: int
) -> None:
    """At any phase, and where W doesn't divide evenly: only what was admitted in this very slice counts."""
    budget = Fixed(limit, WINDOW_S, phase=float(phase), parts=parts)

    _follow(budget, Calls(limit, parts=parts, phase=phase), steps)


@given(steps=STEPS, data=st.data())
def test_two_rules_for_one_limit_both_hold(steps: list[tuple[int, int, int]], data: st.DataObject) -> None:
    """Slices within a minute leave room only where both do."""
    inner, outer = data.draw(PHASES), data.draw(PHASES)
    budget = Both(
        Fixed(90, WINDOW_S, phase=float(inner), parts=6, slice_limit=60), Fixed(90, WINDOW_S, phase=float(outer))
    )
    slices, minute = Calls(60, parts=6, phase=inner), Calls(90, parts=1, phase=outer)
    now = 0.0
    for pause, cost, _ in steps:
        now += pause * TICK_S
        room = min(slices.room(now), minute.room(now))
        assert budget.level(now) == room
        if cost <= room:
            for each in (budget, slices, minute):
                each.take(cost, now)


def test_calls_in_flight_count_until_they_end() -> None:
    """The limit is of calls at a time; time alone frees nothing."""
    budget = InFlight(2)
    budget.take(1, 0)
    budget.take(1, 0)

    assert budget.level(1e6) == 0
    budget.refund(1, 0, 1)
    assert budget.level(1) == 1


@pytest.mark.parametrize("mode", MODES)
@given(pauses=st.lists(st.integers(0, 1024), min_size=1, max_size=100), seed=st.integers(0, 99))
def test_the_stated_wait_is_right_in_every_mode(mode: Enforcement, pauses: list[int], seed: int) -> None:
    """A refused caller who waits as long as stated is admitted, and one who comes a moment earlier isn't."""
    limits = Limits(mode, {"rpm": 12, "tpm": 240}, WINDOW_S, seed=seed)
    costs = costs_of(prompt_tokens=10, output_tokens=20)
    now_us = 0
    for pause in pauses:
        now_us += pause * 977
        verdict = limits.charge(costs, now_us / 1e6)
        if not verdict.admitted:
            wait_us = round(verdict.wait_s * 1e6)
            assert not limits.charge(costs, (now_us + wait_us - 1) / 1e6).admitted
            now_us += wait_us
            assert limits.charge(costs, now_us / 1e6).admitted


@pytest.mark.parametrize("mode", MODES)
@given(seed=st.integers(0, 99), spent=st.integers(1, 10))
def test_after_the_stated_reset_nothing_counts(mode: Enforcement, seed: int, spent: int) -> None:
    """A reset header is true: after that time the account is as fresh as at the start."""
    limits = Limits(mode, {"rpm": 70, "tpm": 700}, WINDOW_S, seed=seed)
    fresh = {name: budget.level(5.0) for name, budget in limits.budgets.items()}
    for _ in range(spent):
        limits.charge(costs_of(prompt_tokens=3, output_tokens=4), 5.0)

    for name, budget in limits.budgets.items():
        assert budget.level(5.0 + budget.full_s(5.0)) == fresh[name]


@pytest.mark.parametrize(
    ("mode", "dimension", "burst"),
    [("bucket", "rpm", 600), ("bucket/6", "rpm", 100), ("sliding", "rpm", 600), ("fixed", "rpm", 600),
     ("10s", "rpm", 100), ("1s", "rpm", 10), ("bucket/6", "tpm", 100), ("10s", "tpm", 600), ("1s", "tpm", 600),
     ("bucket/6", "rpd", 600), ("10s", "tpd", 600)],
)  # fmt: skip
def test_each_mode_allows_its_own_burst(mode: Enforcement, dimension: str, burst: int) -> None:
    """From rest a burst gets L, L/6 or L/60; slices count requests only, and days are never cut into parts."""
    assert dimension in DIMENSIONS
    limits = Limits(mode, {dimension: 600}, WINDOW_S)

    admitted = sum(limits.charge({dimension: 1}, 1000.0).admitted for _ in range(700))

    assert admitted == burst


@pytest.mark.parametrize(("mode", "slice_s"), [("fixed", 6.0), ("10s", 1.0), ("1s", 0.1)])
def test_slices_begin_at_a_phase_that_the_seed_gives(mode: Enforcement, slice_s: float) -> None:
    """Refusals end at a slice's start: the same for one seed, elsewhere for another, and again one slice later."""

    def starts(seed: int) -> list[float]:
        limits = Limits(mode, {"rpm": 600}, WINDOW_S, seed=seed)
        found, now = [], 100.0
        for _ in range(3):
            while (verdict := limits.charge({"rpm": 1}, now)).admitted:
                pass
            now += verdict.wait_s
            found.append(now)
        return found

    first = starts(1)
    assert first[1] - first[0] == pytest.approx(slice_s, abs=2e-6)
    assert first == starts(1)
    assert len({starts(seed)[0] for seed in range(8)}) == 8


@pytest.mark.parametrize("mode", MODES)
def test_small_limits_still_admit(mode: Enforcement) -> None:
    """A limit below the number of parts admits one call at a time, and not none."""
    limits = Limits(mode, {"rpm": 3}, WINDOW_S)

    assert limits.charge({"rpm": 1}, 1.0).admitted


def test_what_is_larger_than_a_sixth_never_fits_a_sixth() -> None:
    """A provider with a bucket of L/6 refuses larger calls for ever."""
    limits = Limits("bucket/6", {"tpm": 600}, 60)

    assert limits.charge({"tpm": 101}, 0).wait_s == float("inf")
    assert limits.charge({"tpm": 100}, 0).admitted


def test_days_are_1440_windows() -> None:
    """What was used counts until a day has passed, scaled like the window."""
    limits = Limits("sliding", {"rpd": 1}, 0.5)
    assert limits.charge({"rpd": 1}, 0).admitted

    assert limits.charge({"rpd": 1}, 719.9).short == "rpd"
    assert limits.charge({"rpd": 1}, 720.0).admitted


@pytest.mark.parametrize("mode", MODES)
def test_refunds_go_where_they_were_taken(mode: Enforcement) -> None:
    """An unused part is free again at once, in the dimensions that were given back and no other; once only."""
    limits = Limits(mode, {"rpm": 600, "tpm": 6000, "max_in_flight": 5}, 60)
    assert limits.charge({"rpm": 1, "tpm": 900, "max_in_flight": 1}, 1000.0).admitted
    after = {name: budget.level(1000.0) for name, budget in limits.budgets.items()}

    limits.refund({"tpm": 400}, 1000.0, 1000.0)
    limits.refund({"tpm": 9999}, 1000.0, 1000.0)
    limits.end_call(1000.0)

    levels = {name: budget.level(1000.0) for name, budget in limits.budgets.items()}
    assert levels == {"rpm": after["rpm"], "tpm": after["tpm"] + 900, "max_in_flight": 5}


@pytest.mark.parametrize("mode", ["sliding", "fixed", "10s", "1s"])
def test_a_refund_for_a_window_that_is_gone_gives_nothing(mode: Enforcement) -> None:
    """Whoever finishes after the window has ended finds that it counts no longer: nothing comes on top."""
    limits = Limits(mode, {"tpm": 100}, 6)
    assert limits.charge({"tpm": 100}, 1.0).admitted
    assert limits.charge({"tpm": 100}, 8.0).admitted

    limits.refund({"tpm": 100}, 1.0, 8.0)

    assert not limits.charge({"tpm": 1}, 8.0).admitted


@given(steps=STEPS)
def test_the_worst_window_is_the_fullest_there_ever_was(steps: list[tuple[int, int, int]]) -> None:
    """The meter knows the highest sum of any trailing window, less the refunds until then."""
    meter, calls = WorstWindow(50, WINDOW_S), Calls(0)
    now, worst = 0.0, Fraction(0)
    back: tuple[int, float] | None = None
    for pause, cost, eighths in steps:
        now += pause * TICK_S
        if back is not None:
            meter.refund(*back, now)
            calls.refund(*back, now)
        meter.record(cost, now)
        calls.take(cost, now)
        back = (cost * eighths // 8, now)
        worst = max(worst, -calls.room(now))

        assert meter.share(now) == float(-calls.room(now) / 50)

    assert meter.worst == float(worst / 50)
