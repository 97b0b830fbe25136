"""What a provider's headers say of its limits: read where it can be read, and left out where it can't."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.outcome import Reading
from stages.providers.headers import readings
from stages.providers.waits import LONGEST_S

# 2026-12-01T04:59:00Z
NOW_S = 1_796_101_140.0
DIALECTS = {
    "openai": (
        {
            "X-RateLimit-Limit-Requests": "500",
            "x-ratelimit-remaining-requests": "499",
            "x-ratelimit-reset-requests": "120ms",
            "x-ratelimit-limit-tokens": "30000",
            "x-ratelimit-remaining-tokens": "29430",
            "x-ratelimit-reset-tokens": "1m26.4s",
            "x-ratelimit-reset": "9s",
        },
        [Reading("rpm", 499, 500, 0.12), Reading("tpm", 29430, 30000, 86.4)],
    ),
    "groq-per-day": (
        {
            "x-ratelimit-limit-requests": "14400",
            "x-ratelimit-remaining-requests": "14370",
            "x-ratelimit-reset-requests": "2m59.56s",
        },
        [Reading("rpm", 14370, 14400, 179.56)],
    ),
    "anthropic": (
        {
            "anthropic-ratelimit-requests-limit": "50",
            "anthropic-ratelimit-requests-remaining": "0",
            "anthropic-ratelimit-requests-reset": "2026-12-01T05:00:00Z",
            "anthropic-ratelimit-input-tokens-limit": "40000",
            "anthropic-ratelimit-input-tokens-remaining": "39000",
            "anthropic-ratelimit-input-tokens-reset": "2026-12-01T04:59:02Z",
            "anthropic-ratelimit-output-tokens-limit": "8000",
            "anthropic-ratelimit-output-tokens-remaining": "8000",
        },
        [Reading("rpm", 0, 50, 60), Reading("itpm", 39000, 40000, 2), Reading("otpm", 8000, 8000, 0)],
    ),
    "their-clock": (
        {
            "date": "Tue, 01 Dec 2026 04:59:50 GMT",
            "anthropic-ratelimit-tokens-limit": "100",
            "anthropic-ratelimit-tokens-remaining": "90",
            "anthropic-ratelimit-tokens-reset": "2026-12-01T05:00:00Z",
        },
        [Reading("tpm", 90, 100, 10)],
    ),
    "azure": ({"x-ratelimit-remaining-requests": "9", "x-ratelimit-remaining-tokens": "900"}, []),
    "none": ({"content-type": "text/event-stream", "x-request-id": "1"}, []),
}


def raw(headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in headers.items()]


@pytest.mark.parametrize(("headers", "expected"), DIALECTS.values(), ids=DIALECTS)
def test_each_dialect_is_understood(headers: dict[str, str], expected: list[Reading]) -> None:
    """Requests and tokens, in all or by direction, are read from the headers of every provider we know."""
    read = readings(raw(headers), now_s=NOW_S)

    assert [one[:3] for one in read] == [one[:3] for one in expected]
    assert [one.reset_s for one in read] == pytest.approx([one.reset_s for one in expected])


@pytest.mark.parametrize("part", ["limit", "remaining", "reset"])
@pytest.mark.parametrize("value", ["-1", "abc", "nan", "inf", "1e9", "12.5", "9" * 13, "\uff19", "--", "1,000"])
def test_nonsense_is_left_out(part: str, value: str) -> None:
    """One value that can't be read costs its own reading, and neither a crash nor the other limit's reading."""
    if (part, value) == ("reset", "12.5"):
        value = "-12.5"  # a plain number of seconds is no nonsense
    headers = {
        **DIALECTS["openai"][0],
        f"x-ratelimit-{part}-requests": value,
    }
    headers.pop(f"X-RateLimit-{part.title()}-Requests", None)

    read = readings(raw(headers), now_s=NOW_S)

    long_wait = (part, value) == ("reset", "9" * 13)  # a moment in the far future, and so the longest wait there is
    assert [one.limit for one in read] == (["rpm", "tpm"] if long_wait else ["tpm"])


@pytest.mark.parametrize(("of", "left"), [("0", "0"), ("10", "11"), ("", "5"), ("5", ""), ("10", None), (None, "10")])
def test_what_can_t_be_is_left_out(of: str | None, left: str | None) -> None:
    """More left than there is, a limit of nothing, or half of a pair say nothing at all."""
    given_ = {"x-ratelimit-limit-tokens": of, "x-ratelimit-remaining-tokens": left}

    assert readings(raw({name: value for name, value in given_.items() if value is not None}), now_s=NOW_S) == []


_NAMES = [
    f"{name}" for of in ("requests", "tokens", "input-tokens") for name in (
        f"x-ratelimit-limit-{of}", f"x-ratelimit-remaining-{of}", f"x-ratelimit-reset-{of}",
        f"anthropic-ratelimit-{of}-limit", f"anthropic-ratelimit-{of}-remaining", f"anthropic-ratelimit-{of}-reset",
    )
]  # fmt: skip
_VALUES = st.one_of(st.binary(max_size=80), st.integers(-(10**20), 10**20).map(lambda n: str(n).encode()))


@given(st.lists(st.tuples(st.sampled_from(["date", *_NAMES]).map(str.encode), _VALUES)))
def test_no_header_can_do_harm(headers: list[tuple[bytes, bytes]]) -> None:
    """Whatever bytes a provider sends, what is read is a possible limit with a wait of a day at most."""
    for one in readings(headers, now_s=NOW_S):
        assert 0 <= one.left <= one.of < 10**12
        assert one.of >= 1
        assert 0 <= one.reset_s <= LONGEST_S
