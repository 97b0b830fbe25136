"""The numbers the gate counts with, worked out from what a provider allows."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.config import Deployment
from pipeline.limits import explain, resolve, seed, terms

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
    enforcement=st.sampled_from(["auto", "continuous"]),
)
def test_a_cold_start_never_exceeds_the_limit(
    limit: int, window_s: float, send_within_s: float, enforcement: str
) -> None:
    """A burst, the refill of a window and what a restart begins with stay within the limit together."""
    found = resolve("rpm", limit, window_s=window_s, send_within_s=send_within_s, enforcement=enforcement)

    window = found.window_us + found.late_us
    assert found.capacity + found.rate * window + found.cold <= limit * (1 + 1e-9)
    assert 1 <= found.capacity <= limit
    assert found.rate > 0
    assert (found.slots - 1) * found.slot_us >= window


@pytest.mark.parametrize(("enforcement", "capacity"), [("auto", 50), ("continuous", 250)])
def test_a_provider_that_refills_steadily_allows_larger_bursts(enforcement: str, capacity: float) -> None:
    """`continuous` bursts up to half the limit, everything else up to a tenth."""
    found = resolve("rpm", 500, window_s=60, send_within_s=1, enforcement=enforcement)

    assert found.capacity == capacity


def test_only_limits_that_are_set_count() -> None:
    """Without a token limit no tokens are counted."""
    assert [limit.name for limit in terms(Deployment(rpm=5)).limits] == ["rpm"]
    assert [limit.name for limit in terms(Deployment(tpm=5)).limits] == ["tpm"]


@pytest.mark.parametrize(("settlement", "becomes"), [("auto", "none"), ("none", "none"), ("refund", "refund")])
def test_unused_tokens_are_given_back_only_where_that_was_asked_for(settlement: str, becomes: str) -> None:
    """`auto` acts as `none`: a refund at a provider that gives none causes rejections."""
    deployment = Deployment(rpm=5, settlement=settlement)  # type: ignore[arg-type]

    assert terms(deployment).settlement == becomes


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
