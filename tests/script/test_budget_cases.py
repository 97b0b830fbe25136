"""What the budget promises in single cases: floors, debts, cold starts, clocks, pauses, and how much it uses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.script.arithmetic import START_US, Arithmetic, limits_of
from tests.script.walks import STANDARD, saturated

SECOND_US = 1_000_000


def test_a_refusal_takes_nothing() -> None:
    """Asking a thousand times for what doesn't fit costs nothing."""
    budget = Arithmetic(STANDARD)
    budget.wait(START_US, {"rpm": 0})
    now = START_US + 600 * SECOND_US
    assert budget.acquire(now, {"rpm": 1, "tpm": 2_999}) == 0
    level, cum = budget.level(now, 2), budget.stored("tpm.cum")

    for _ in range(1000):
        assert budget.acquire(now, {"rpm": 1, "tpm": 50}) > 0

    assert (budget.level(now, 2), budget.stored("tpm.cum"), budget.stored("rpm.cum")) == (level, cum, "1")
    assert budget.used(now, 1) == 1


@pytest.mark.parametrize(("rank", "left"), [(0, 0), (1, 5), (2, 15)])
def test_lower_classes_leave_their_share(rank: int, left: int) -> None:
    """`standard` leaves a tenth of the burst and `batch` three tenths, so that `interactive` finds room at once."""
    budget = Arithmetic(limits_of(rpm=500))
    budget.wait(START_US, {"rpm": 0})
    now = START_US + 600 * SECOND_US
    while budget.acquire(now, {"rpm": 1}, rank) <= 0:
        pass

    assert budget.level(now, 1) == left


def test_fifteen_interactive_requests_go_at_once_after_two_minutes_of_batch() -> None:
    """A batch job that takes all it can get doesn't make an interactive user wait."""
    budget = Arithmetic(limits_of(rpm=500))
    budget.wait(START_US, {"rpm": 0})
    now = START_US + 60 * SECOND_US
    end = now + 120 * SECOND_US
    while now < end:
        now += int(budget.acquire(now, {"rpm": 1}, 2))

    assert [budget.acquire(now, {"rpm": 1}, 0) for _ in range(15)] == [0] * 15


def test_a_floor_never_keeps_out_a_large_batch_request() -> None:
    """A batch request as large as the burst, or larger, goes once the bucket is full."""
    for amount in (2_500, 3_000, 15_000, 30_000):
        budget = Arithmetic(limits_of(tpm=30_000))
        budget.wait(START_US, {"tpm": 0})
        now = START_US + 3600 * SECOND_US

        assert budget.acquire(now, {"tpm": amount}, 2) == 0
        assert budget.acquire(now, {"tpm": 1}, 2) > 0


def test_a_request_beyond_the_burst_leaves_a_debt() -> None:
    """A large request goes from a full bucket only, and others wait until its debt is paid."""
    limit = limits_of(tpm=30_000)[0]
    budget = Arithmetic([limit])
    budget.wait(START_US, {"tpm": 0})
    now = START_US + 3600 * SECOND_US
    budget.charge(now, {"tpm": 1})
    assert 0 < budget.acquire(now, {"tpm": 15_000}) <= 1 / limit.rate + 1

    now += int(budget.wait(now, {"tpm": 15_000}))
    assert budget.acquire(now, {"tpm": 15_000}) == 0
    assert budget.level(now, 1) == limit.capacity - 15_000
    assert budget.wait(now, {"tpm": 0}) == pytest.approx((15_000 - limit.capacity) / limit.rate, abs=1)


def test_what_can_never_fit_has_no_wait() -> None:
    """A request larger than the limit is told so at once instead of waiting for ever."""
    assert Arithmetic(STANDARD).wait(START_US, {"rpm": 1, "tpm": 30_001}) == float("inf")


@pytest.mark.parametrize("enforcement", ["auto", "continuous"])
def test_after_a_cold_start_large_requests_wait_for_a_whole_window(enforcement: str) -> None:
    """Nobody knows what the lost window held: nothing beyond the burst goes before it has passed."""
    limit = limits_of(tpm=30_000, enforcement=enforcement)[0]
    budget = Arithmetic([limit])
    amount = int(limit.capacity) + 1

    wait_us = budget.wait(START_US, {"tpm": amount})

    assert wait_us >= limit.window_us + limit.late_us
    assert budget.acquire(START_US + int(wait_us), {"tpm": amount}) == 0


@pytest.mark.parametrize(("limit", "seconds"), [({"rpm": 500}, 5.4), ({"tpm": 30_000}, 5.3)])
def test_premium_opens_five_seconds_after_a_cold_start(limit: dict[str, Any], seconds: float) -> None:
    """After a total loss of state premium is back within seconds, not after a minute."""
    wait_us = Arithmetic(limits_of(**limit)).wait(START_US, {next(iter(limit)): 1})

    assert wait_us / SECOND_US == pytest.approx(seconds, abs=0.1)


def test_a_limit_added_while_running_starts_cold() -> None:
    """A token limit added live doesn't take the unknown past for empty: nothing large goes for a window."""
    both, budget = limits_of(rpm=500, tpm=30_000), Arithmetic(limits_of(rpm=500))
    budget.wait(START_US, {"rpm": 0})
    now = START_US + 3600 * SECOND_US
    assert budget.acquire(now, {"rpm": 1, "tpm": 15_000}) == 0

    budget.change(both)

    assert budget.wait(now, {"rpm": 1, "tpm": 15_000}) >= both[1].window_us + both[1].late_us
    assert budget.level(now, 2) == pytest.approx(both[1].cold)


def test_a_clock_that_steps_back_stands_still() -> None:
    """After a fail-over to a server whose clock is behind, nothing is lost and nothing is given twice."""
    budget = Arithmetic(STANDARD)
    budget.wait(START_US, {"rpm": 0})
    now = START_US + 3600 * SECOND_US
    assert budget.acquire(now, {"rpm": 10, "tpm": 100}) == 0

    for back_s in (0, 1, 30, 59):
        assert budget.level(now - back_s * SECOND_US) == 40
        assert budget.used(now - back_s * SECOND_US) == 10
    assert budget.stored("at") == str(now)


def test_a_clock_put_right_by_an_hour_doesnt_close_the_budget() -> None:
    """When a clock that was an hour ahead is put right, premium is back in seconds, as after a cold start."""
    budget = Arithmetic(STANDARD)
    budget.wait(START_US, {"rpm": 0})
    ahead = START_US + 3600 * SECOND_US
    budget.pause(ahead, ahead + 20 * SECOND_US)

    wait_us = budget.wait(START_US + SECOND_US, {"rpm": 1})

    assert wait_us == pytest.approx(20 * SECOND_US, abs=1)
    assert budget.acquire(START_US + SECOND_US + int(wait_us), {"rpm": 1, "tpm": 100}) == 0


def test_a_pause_holds_everybody() -> None:
    """While the provider has told us to wait, nothing goes, and the wait says how long."""
    budget = Arithmetic(STANDARD)
    budget.wait(START_US, {"rpm": 0})
    now = START_US + 600 * SECOND_US
    budget.pause(now, now + 7 * SECOND_US)
    budget.pause(now, now + 3 * SECOND_US)

    assert budget.acquire(now, {"rpm": 1}) == 7 * SECOND_US
    assert budget.acquire(now + 7 * SECOND_US, {"rpm": 1}) == 0


@settings(max_examples=60, deadline=None)
@given(odd=st.integers(1, 10**6), amount=st.integers(1, 10**12))
def test_stored_numbers_keep_every_digit(odd: int, amount: int) -> None:
    """Times of sixteen digits and levels with all their fraction come back as they were written."""
    limit = limits_of(tpm=10**13)[0]
    budget = Arithmetic([limit])
    now = START_US + odd
    budget.charge(now, {"tpm": amount})
    level = budget.level(now, 1)

    assert budget.stored("at") == budget.stored("born") == str(now)
    assert float(budget.stored("tpm.level")) == level == limit.cold - amount
    assert budget.stored("tpm.cum") == str(amount)
    assert budget.used(now, 1) == amount
    assert budget.level(now + 1, 1) == level + limit.rate


@pytest.mark.parametrize(
    ("cost", "bound_by", "least"),
    [
        ({"rpm": 1, "tpm": 1}, "rpm", 0.95),
        ({"rpm": 1, "tpm": 97}, "tpm", 0.95),
        ({"rpm": 1, "tpm": 600}, "tpm", 0.95),
        ({"rpm": 1, "tpm": 3_000}, "tpm", 0.91),
    ],
)
def test_saturation_uses_nearly_all_of_the_limit(
    cost: dict[str, int], bound_by: str, least: float, record_property: Callable[[str, object], None]
) -> None:
    """With endless work of up to a fiftieth of the limit, at least 95 % of it is used; up to a tenth, 91 %."""
    used = saturated(STANDARD, cost)

    record_property("use", used)
    assert least <= used[bound_by] <= 1
