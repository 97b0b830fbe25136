"""The numbers the gate counts with, worked out from what a provider allows."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.config import Deployment
from pipeline.limits import allowed, explain, seed, terms
from tokenweir.terms import Allowed, Enforcement, resolve
from tokenweir.terms import terms as resolve_terms

DEPLOYMENT = Deployment(rpm=500, tpm=30_000)


def test_the_readme_example_has_the_numbers_it_promises() -> None:
    """500 requests and 30,000 tokens a minute: a burst of a tenth, 96.8 % in use, open after some 5 s."""
    requests, tokens = terms(DEPLOYMENT).limits

    assert (requests.name, requests.limit, requests.capacity) == ("rpm", 500, 50)
    assert (tokens.name, tokens.limit, tokens.capacity) == ("tpm", 30_000, 3_000)
    assert requests.expected_use == pytest.approx(0.968, abs=0.001)
    assert requests.opening_s == pytest.approx(5.4, abs=0.1)
    assert tokens.opening_s == pytest.approx(5.2, abs=0.1)


@given(
    limit=st.integers(1, 10**9),
    window_s=st.floats(0.05, 86_400),
    send_within_s=st.floats(0.01, 30),
    enforcement=st.sampled_from(["auto", "continuous", "quantised:10s", "quantised:1s"]),
)
def test_a_cold_start_never_exceeds_the_limit(
    limit: int, window_s: float, send_within_s: float, enforcement: Enforcement
) -> None:
    """A burst, the refill of a window and what a restart begins with stay within the limit together."""
    stated = Allowed(limits={}, window_s=window_s, send_within_s=send_within_s, enforcement=enforcement)
    found = resolve("rpm", limit, stated)

    window = found.window_us + found.late_us
    assert found.capacity + found.rate * window + found.cold <= limit * (1 + 1e-9)
    assert 1 <= found.capacity <= limit
    assert 0 < found.expected_use <= 1


@pytest.mark.parametrize(("enforcement", "capacity"), [("auto", 50), ("continuous", 250), ("quantised:10s", 1)])
def test_how_a_provider_counts_decides_how_large_a_burst_may_be(enforcement: Enforcement, capacity: float) -> None:
    """`continuous` bursts up to half the limit, slices allow none, everything else a tenth."""
    assert terms(Deployment(rpm=500, enforcement=enforcement)).limits[0].capacity == capacity


@given(
    requests=st.integers(60, 100_000),
    late_s=st.floats(0.01, 2),
    slices=st.sampled_from([("quantised:10s", 6), ("quantised:1s", 60)]),
)
def test_no_slice_of_a_window_gets_more_than_its_share(
    requests: int, late_s: float, slices: tuple[Enforcement, int]
) -> None:
    """Under `quantised` any slice, and the way to the provider, holds at most the slice's share of whole requests."""
    enforcement, count = slices
    found = resolve("rpm", requests, Allowed(limits={}, send_within_s=late_s, enforcement=enforcement))

    most = math.floor(found.capacity + found.rate * (found.window_us / count + found.late_us))
    assert most <= requests // count
    assert found.cold + most <= requests // count


@pytest.mark.parametrize(("late_s", "least"), [(1.0, 0.89), (0.2, 0.96), (None, 0.96)])
def test_slices_of_ten_seconds_leave_most_of_the_limit_in_use(late_s: float | None, least: float) -> None:
    """500 requests a minute in slices of 10 s: 89 % with a second on the way, 96 % with a fifth, the default."""
    found = terms(Deployment(rpm=500, enforcement="quantised:10s", send_within_s=late_s)).limits[0]

    assert found.expected_use >= least


def test_tokens_aren_t_counted_in_slices() -> None:
    """Under `quantised` only requests are held to slices; tokens have the burst that every window allows."""
    assert [limit.capacity for limit in terms(Deployment(rpm=500, tpm=30_000, enforcement="quantised:1s")).limits] == [
        1,
        3_000,
    ]


def test_days_are_counted_and_not_paced() -> None:
    """A daily quota may be used up in a morning, and is closed for no cold start."""
    found = terms(Deployment(rpm=500, rpd=10_000, tpd=1_000_000, day_resets_at="08:30")).limits[1:]

    assert [(limit.name, limit.paced, limit.cold) for limit in found] == [
        ("rpd", False, 10_000),
        ("tpd", False, 1_000_000),
    ]
    assert found[0].window_us == 86_400_000_000
    assert found[0].resets_us == (8 * 60 + 30) * 60_000_000
    assert found[0].resets_us % found[0].slot_us == 0


@pytest.mark.parametrize(
    ("stated", "complaint"),
    [
        ({"limits": {}}, "no limit given"),
        ({"limits": {"rph": 5}}, "unknown limit 'rph'"),
        ({"limits": {"rpd": 5}, "day_resets_at": "25:00"}, "no time of day"),
    ],
)
def test_terms_that_make_no_sense_are_refused(stated: dict[str, Any], complaint: str) -> None:
    """The error names what is wrong and what is known."""
    with pytest.raises(ValueError, match=complaint):
        resolve_terms(Allowed(**stated))


def test_every_limit_reaches_the_gate() -> None:
    """All six limits, and the calls in flight, are counted as configured."""
    deployment = Deployment(rpm=1, tpm=2, itpm=3, otpm=4, rpd=5, tpd=6, max_in_flight=7)

    assert {limit.name: limit.limit for limit in terms(deployment).limits} == {
        "rpm": 1, "tpm": 2, "itpm": 3, "otpm": 4, "rpd": 5, "tpd": 6,
    }  # fmt: skip
    assert terms(deployment).max_in_flight == 7
    assert resolve_terms(allowed(deployment)) == terms(deployment)


def test_only_limits_that_are_set_count() -> None:
    """Without a token limit no tokens are counted."""
    assert [limit.name for limit in terms(Deployment(rpm=5)).limits] == ["rpm"]
    assert [limit.name for limit in terms(Deployment(tpm=5)).limits] == ["tpm"]


def test_calls_start_within_half_of_the_way_to_the_provider() -> None:
    """Half of `send_within_s` is for our side, half for the way: 0.5 s by default."""
    assert terms(DEPLOYMENT).start_within_us == 500_000


def test_the_fingerprint_follows_what_is_enforced() -> None:
    """A start with changed limits puts them in place; changed time-outs or keys don't count as a change."""
    name, print_, encoded = seed(DEPLOYMENT)

    assert name == "primary"
    assert [limit["limit"] for limit in json.loads(encoded)["limits"]] == [500, 30_000]
    assert seed(Deployment(rpm=500, tpm=30_000, call_s=1, api_key="other"))[1] == print_
    for other in (
        Deployment(rpm=501, tpm=30_000),
        Deployment(rpm=500),
        Deployment(rpm=500, tpm=30_000, window_s=6),
        Deployment(rpm=500, tpm=30_000, settlement="refund"),
    ):
        assert seed(other)[1] != print_


def test_the_numbers_are_told_in_words() -> None:
    """An operator reads one line a limit: burst, refill, expected use, opening time."""
    first, second = explain(DEPLOYMENT)

    assert first.startswith("primary rpm 500 per 60 s: burst 50, refill 8.06/s, uses up to 96.8%")
    assert "opens 5.3 s after a cold start" in first
    assert second.startswith("primary tpm 30,000 per 60 s: burst 3,000")
