"""A server loses what workers remember: they put it back, and no window gets more than the limit."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.sandbox.limits import Limits
from tests.script.arithmetic import Charge, limits_of, warm
from tests.script.troubles import fails_over, loses_everything

SECOND_US = 1_000_000
DAY_US = 86_400 * SECOND_US


def test_a_change_of_server_lets_every_worker_speak_first() -> None:
    """After a fail-over nothing is granted for a second: what was lost is told by then."""
    budget, now = warm(*limits_of(rpm=500))
    assert budget.acquire(now, {"rpm": 1}) == 0

    budget.move("second")

    assert budget.acquire(now, {"rpm": 1}) == SECOND_US
    assert budget.acquire(now + SECOND_US, {"rpm": 1}) == 0


def test_lost_charges_come_back_once_where_they_were() -> None:
    """Two workers tell of the same lost charges: the larger count is put back, once, and leaves the window in time."""
    limit = limits_of(rpm=500)[0]
    budget, now = warm(limit)
    replica = budget.snapshot()
    charges = [Charge(now, 30)]
    budget.charge(now, {"rpm": 20})
    early = budget.remember(now, "rpm")
    budget.charge(now, {"rpm": 10})
    late = budget.remember(now, "rpm")
    budget.move("second", replica)
    now += SECOND_US

    assert budget.seen(now, "rpm", early)
    assert budget.seen(now, "rpm", late)
    assert not budget.seen(now, "rpm", late)

    assert budget.used(now) == sum(charge.amount for charge in charges)
    assert budget.used(charges[0].at + limit.window_us + limit.late_us + limit.slot_us) == 0


def test_what_was_granted_since_the_change_isnt_taken_for_lost() -> None:
    """A worker that was cut off for long tells late: what the new server granted meanwhile doesn't hide the loss."""
    budget, now = warm(*limits_of(rpm=500))
    replica = budget.snapshot()
    budget.charge(now, {"rpm": 30})
    memory = budget.remember(now, "rpm")
    budget.move("second", replica)
    budget.wait(now, {"rpm": 1})
    budget.charge(now + 2 * SECOND_US, {"rpm": 12})

    budget.seen(now + 3 * SECOND_US, "rpm", memory)

    assert budget.used(now + 3 * SECOND_US) == 42


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**9),
    enforcement=st.sampled_from(["auto", "continuous"]),
    largest=st.sampled_from([0.02, 0.5]),
)
def test_fail_overs_that_lose_writes_admit_no_more(seed: int, enforcement: str, largest: float) -> None:
    """Replicas lag by up to five seconds, four times: with workers that tell, no window exceeds the limit."""
    fails_over(seed, enforcement, largest)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**9))
def test_a_debt_survives_the_loss_of_everything(seed: int) -> None:
    """Redis is emptied while the debt of a large request is open: the worker that called for it tells of it."""
    loses_everything(seed)


def test_premium_is_back_within_a_window_of_a_fail_over_that_lost_a_day() -> None:
    """A replica restored from yesterday's backup: after a simulated day of traffic it opens within W + J."""
    limit = limits_of(tpm=30_000)[0]
    budget, now = warm(limit)
    replica = budget.snapshot()
    judge, rejected = Limits("sliding", {"tpm": 30_000}, 60.0), 0
    end = now + DAY_US
    while now < end:
        wait_us = budget.acquire(now, {"tpm": 600})
        if wait_us <= 0:
            rejected += not judge.charge({"tpm": 600}, now / 1e6).admitted
        now += int(max(0, wait_us)) if chance_of(now) else SECOND_US * 20
    memory = budget.remember(now, "tpm")
    moved = now
    budget.move("second", replica)
    budget.seen(now, "tpm", memory)

    opened = 0
    while now < moved + 200 * SECOND_US:
        wait_us = budget.acquire(now, {"tpm": 600})
        if wait_us <= 0:
            opened = opened or now
            rejected += not judge.charge({"tpm": 600}, now / 1e6).admitted
        now += int(max(0, wait_us))

    assert rejected == 0
    assert moved + SECOND_US <= opened <= moved + limit.window_us + limit.late_us


def chance_of(now: int) -> bool:
    """Traffic comes in waves of an hour."""
    return now // (3600 * SECOND_US) % 2 == 0
