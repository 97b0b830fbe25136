"""What budgets learn from refusals, probes, results and headers."""

from __future__ import annotations

import pytest

from tests.script.arithmetic import START_US, limits_of, warm

SECOND_US = 1_000_000
DAY_US = 86_400 * SECOND_US


# Refusals and probes


def test_after_a_pause_one_call_goes_first() -> None:
    """When a pause is over one call alone tries; the others follow as soon as it was answered."""
    budget, now = warm(*limits_of(rpm=500))
    budget.pause(now, now + 7 * SECOND_US)
    now += 7 * SECOND_US

    assert budget.acquire(now, {"rpm": 1}) == 0
    assert budget.acquire(now, {"rpm": 1}) > 0
    budget.settle(now + SECOND_US, {"rpm": 1}, None, now)
    assert budget.acquire(now + SECOND_US, {"rpm": 1}) == 0
    assert budget.acquire(now + SECOND_US, {"rpm": 1}) == 0


def test_a_probe_that_is_never_heard_of_doesnt_close_the_deployment_for_ever() -> None:
    """The worker with the probe dies: ten seconds later another may try."""
    budget, now = warm(*limits_of(rpm=500))
    budget.pause(now, now + SECOND_US)
    now += SECOND_US
    assert budget.acquire(now, {"rpm": 1}) == 0

    assert budget.acquire(now, {"rpm": 1}) == 10 * SECOND_US
    assert budget.acquire(now + 10 * SECOND_US, {"rpm": 1}) == 0


def test_a_probe_that_was_given_back_leaves_its_turn_to_the_next() -> None:
    """A probe whose call was never made tells nothing, and costs nobody ten seconds."""
    budget, now = warm(*limits_of(rpm=500))
    budget.pause(now, now + SECOND_US)
    now += SECOND_US
    assert budget.acquire(now, {"rpm": 1}) == 0

    budget.uncharge(now, {"rpm": 1}, now)

    assert budget.acquire(now, {"rpm": 1}) == 0


def test_answers_to_calls_from_before_dont_end_a_pause() -> None:
    """What was already on its way when the provider refused says nothing about the time after."""
    budget, now = warm(*limits_of(rpm=500))
    before = now
    assert budget.acquire(before, {"rpm": 1}) == 0
    budget.pause(now, now + 5 * SECOND_US)

    budget.settle(now + SECOND_US, {"rpm": 1}, None, before)

    assert budget.wait(now + SECOND_US, {"rpm": 1}) == 4 * SECOND_US


def test_refusals_narrow_the_rate_once_a_pause_and_it_heals() -> None:
    """Ten refusals of one moment cut the rate by three tenths, not to nothing; a minute later it is whole again."""
    limit = limits_of(rpm=600)[0]
    budget, now = warm(limit)
    for _ in range(10):
        budget.acquire(now, {"rpm": 1})
    for _ in range(10):
        budget.refused(now, now - SECOND_US, SECOND_US)
    budget.charge(now + SECOND_US, {"rpm": int(limit.capacity)})
    budget.settle(now + SECOND_US, {"rpm": 1}, None, now + SECOND_US)

    assert float(budget.stored("factor") or 1) == pytest.approx(0.705, abs=0.01)
    later = now + 62 * SECOND_US
    budget.wait(later, {"rpm": 1})
    assert float(budget.stored("factor") or 1) == 1


def test_no_number_of_refusals_stops_all_traffic() -> None:
    """Refused again after every pause, a fifth of the rate is left."""
    budget, now = warm(*limits_of(rpm=600))
    for _ in range(20):
        budget.refused(now, now, SECOND_US)
        now += 2 * SECOND_US

    assert float(budget.stored("factor") or 1) == pytest.approx(0.2, abs=0.02)


# Other kinds of limits


def test_calls_in_flight_are_counted_until_they_end() -> None:
    """With two calls allowed at the same time the third waits for an end, however much of the rate is left."""
    budget, now = warm(*limits_of(rpm=500), max_in_flight=2)
    assert [budget.acquire(now, {"rpm": 1}) for _ in range(3)] == [0, 0, SECOND_US]


def test_a_day_s_quota_is_counted_over_any_24_hours() -> None:
    """Nothing beyond the daily limit goes until the first of it is a day old, paced by nothing else."""
    budget, now = warm(*limits_of(rpd=100))
    assert [budget.acquire(now, {"rpd": 1}) for _ in range(100)] == [0] * 100

    wait_us = budget.acquire(now, {"rpd": 1})

    assert DAY_US - 900 * SECOND_US <= wait_us <= DAY_US + 900 * SECOND_US + SECOND_US
    assert budget.acquire(now + int(wait_us), {"rpd": 1}) == 0


def test_a_calendar_day_begins_when_the_provider_s_does() -> None:
    """A quota used up at noon is back at the hour at which the provider's day begins, not at noon of the next."""
    limit = limits_of(rpd=100, day_resets_at="08:00")[0]
    budget, _ = warm(limit)
    noon = (START_US // DAY_US + 2) * DAY_US + 12 * 3600 * SECOND_US
    assert [budget.acquire(noon, {"rpd": 1}) for _ in range(100)] == [0] * 100

    wait_us = budget.acquire(noon, {"rpd": 1})

    assert wait_us == 20 * 3600 * SECOND_US + limit.late_us
    assert budget.acquire(noon + int(wait_us), {"rpd": 1}) == 0


def test_input_and_output_have_limits_of_their_own() -> None:
    """Whichever of the two is short decides."""
    budget, now = warm(*limits_of(itpm=10_000, otpm=1_000))
    assert budget.acquire(now, {"itpm": 100, "otpm": 100}) == 0

    assert budget.acquire(now, {"itpm": 100, "otpm": 1}) > 0
    assert budget.acquire(now, {"itpm": 100, "otpm": 0}) == 0


# Settlement


def test_what_a_call_used_beyond_its_reservation_is_charged_under_every_policy() -> None:
    """An estimate that was too low costs afterwards."""
    for policy in ("auto", "none", "refund"):
        budget, now = warm(*limits_of(tpm=30_000), settlement=policy)
        assert budget.acquire(now, {"tpm": 100}) == 0
        budget.settle(now + SECOND_US, {"tpm": 100}, {"tpm": 150}, now)

        assert budget.used(now + SECOND_US) == 150


@pytest.mark.parametrize(("policy", "left"), [("auto", 100), ("none", 100), ("refund", 40)])
def test_unused_tokens_come_back_only_where_the_provider_refunds(policy: str, left: int) -> None:
    """Under `refund` they leave the very slot they were charged to; `auto` waits for a proof."""
    budget, now = warm(*limits_of(tpm=30_000), settlement=policy)
    assert budget.acquire(now, {"tpm": 100}) == 0

    budget.settle(now + 4 * SECOND_US, {"tpm": 100}, {"tpm": 40}, now)

    assert budget.used(now + 4 * SECOND_US) == left


# Headers


def test_the_provider_s_word_lowers_the_level() -> None:
    """Somebody else has used the key: what the provider says is left counts, less a margin, and never upwards."""
    limit = limits_of(tpm=30_000, enforcement="continuous")[0]
    budget, now = warm(limit, feedback=True)
    assert budget.acquire(now, {"tpm": 1_000}) == 0

    alarm = budget.heard(now + SECOND_US, "tpm", 10_000, 30_000, 40 * SECOND_US, now)

    # 1,000 of ours may not be in the 10,000; 5 % of the limit is the margin.
    assert budget.level(now + SECOND_US) == 10_000 - 1_000 - 1_500
    assert alarm == "foreign_use"
    budget.heard(now + SECOND_US, "tpm", 30_000, 30_000, 0, now)
    assert budget.level(now + SECOND_US) <= 10_000 - 1_000 - 1_500


@pytest.mark.parametrize(
    ("left", "of", "reset_s", "age_s"),
    [
        (-1, 30_000, 40, 1),
        (10_000, 0, 40, 1),
        (40_000, 30_000, 1, 1),
        (10_000, 30_000, 40, 16),
        (10_000, 30_000, 57_600, 1),
        (10_000, 1_000_000, 0, 1),
    ],
    ids=["unknown", "no limit", "more than all", "too old", "of a day", "of an unknown window"],
)
def test_headers_that_say_nothing_of_this_limit_change_nothing(left: int, of: int, reset_s: float, age_s: int) -> None:
    """Nonsense, old news and headers of another window are not believed."""
    budget, now = warm(*limits_of(tpm=30_000, enforcement="continuous"), feedback=True)
    assert budget.acquire(now, {"tpm": 1_000}) == 0
    level = budget.level(now + age_s * SECOND_US)

    assert budget.heard(now + age_s * SECOND_US, "tpm", left, of, reset_s * SECOND_US, now) is None

    assert budget.level(now + age_s * SECOND_US) == level


def test_under_other_presets_headers_only_raise_an_alarm() -> None:
    """Where the provider doesn't refill steadily its figures mean something else."""
    budget, now = warm(*limits_of(tpm=30_000))
    assert budget.acquire(now, {"tpm": 1_000}) == 0
    level = budget.level(now + SECOND_US)

    assert budget.heard(now + SECOND_US, "tpm", 1_000, 30_000, 58 * SECOND_US, now) == "foreign_use"

    assert budget.level(now + SECOND_US) == level


def test_a_lower_limit_than_configured_is_believed_and_told() -> None:
    """The account allows less than the file says: the smaller one counts from the first answer on."""
    budget, now = warm(*limits_of(rpm=500))
    assert budget.acquire(now, {"rpm": 1}) == 0

    assert budget.heard(now + SECOND_US, "rpm", 99, 100, 600_000, now) == "limit_lower"

    now += 120 * SECOND_US
    granted = 0
    while budget.acquire(now, {"rpm": 1}) == 0:
        granted += 1
    assert granted == 10
    assert budget.wait(now, {"rpm": 101}) == float("inf")
    assert budget.heard(now + SECOND_US, "rpm", 88, 100, 7.2 * SECOND_US, now) is None, "it is told once"
    budget.heard(now + SECOND_US, "rpm", 480, 500, 2.4 * SECOND_US, now)
    assert budget.level(now + 300 * SECOND_US) == 50, "raised again at the provider, it counts in full"
