"""The one parser for a provider's waits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.providers.waits import LONGEST_S, clock_s, retry_after_s, wait_s

# 2026-12-01T04:59:00Z
NOW_S = 1_796_101_140.0

READ = [
    ("120ms", 0.12),
    ("1s", 1),
    ("6m0s", 360),
    ("1m26.4s", 86.4),
    ("7h12m0s", 25_920),
    ("0s", 0),
    ("8.64s", 8.64),
    ("6ms", 0.006),
    ("1h2m3s", 3723),
    ("1h 2m 3s", 3723),
    ("3.5s", 3.5),
    ("250us", 0.00025),
    ("2d", LONGEST_S),
    ("20", 20),
    ("0.5", 0.5),
    ("86400", LONGEST_S),
    ("999999", LONGEST_S),
    ("1796101200", 60),
    ("1796101200000", 60),
    ("2026-12-01T05:00:00Z", 60),
    ("2026-12-01T06:00:00+01:00", 60),
    ("Tue, 01 Dec 2026 05:00:00 GMT", 60),
    ("Fri, 01 Jan 2100 00:00:00 GMT", LONGEST_S),
]
IGNORED = [
    "",
    " ",
    "soon",
    "-1",
    "-5s",
    "abc",
    "nan",
    "inf",
    "1e3",
    "s",
    "1 fortnight",
    "1700000000",
    "2020-01-01T00:00:00Z",
    "Tue, 99 Dec 2026 05:00:00 GMT",
    "Tue, nonsense",
    "9" * 400,
    "٣",
]


@pytest.mark.parametrize(("text", "seconds"), READ)
def test_every_dialect_is_read(text: str, seconds: float) -> None:
    """Go durations, seconds, RFC 3339, HTTP dates and Unix times all become seconds from now, a day at most."""
    assert wait_s(text, now_s=NOW_S) == pytest.approx(seconds)


@pytest.mark.parametrize("text", IGNORED)
def test_what_says_nothing_is_ignored(text: str) -> None:
    """Nonsense and times that have passed are no wait at all, which isn't a wait of 0."""
    assert wait_s(text, now_s=NOW_S) is None


@pytest.mark.parametrize(
    ("headers", "text", "limit", "seconds"),
    [
        ({"retry-after-ms": "250", "retry-after": "9"}, "again in 5s", "", 0.25),
        ({"retry-after-ms": "-1", "retry-after": "9"}, "again in 5s", "", 9),
        ({"retry-after": "soon"}, "Please try again in 1m26.4s. Visit us.", "", 86.4),
        ({}, "Please retry after 86400 seconds.", "", LONGEST_S),
        ({}, "Retry in 2 minutes", "", 120),
        ({}, "retry after 1 day", "", LONGEST_S),
        ({}, '{"retryDelay": "36.5s"}', "", 36.5),
        ({}, "try again in a while", "", None),
        ({"x-ratelimit-reset-requests": "120ms", "x-ratelimit-reset-tokens": "6m0s"}, "", "", 360),
        ({"x-ratelimit-reset-requests": "6m0s", "x-ratelimit-reset-tokens": "120ms"}, "", "", 360),
        ({"x-ratelimit-reset-requests": "120ms", "x-ratelimit-reset-tokens": "6m0s"}, "", "requests", 0.12),
        ({"x-ratelimit-reset-requests": "soon", "x-ratelimit-reset-tokens": "6m0s"}, "", "requests", 360),
        ({"x-ratelimit-reset": "1796101200000"}, "", "", 60),
        ({}, "", "", None),
    ],
)
def test_the_most_precise_statement_counts(
    headers: dict[str, str], text: str, limit: str, seconds: float | None
) -> None:
    """What is said for this request comes before resets; of two resets the later, unless the limit is named."""
    wait = retry_after_s(headers, text, limit=limit, now_s=NOW_S)

    assert wait == (None if seconds is None else pytest.approx(seconds))


def test_dates_are_meant_by_the_providers_clock() -> None:
    """A worker whose clock is wrong still waits as long as the provider meant."""
    assert clock_s({"date": "Tue, 01 Dec 2026 04:59:00 GMT"}, default_s=5) == NOW_S
    assert clock_s({"date": "today"}, default_s=5) == 5


_durations = st.lists(st.tuples(st.integers(0, 10**6), st.sampled_from(["h", "m", "s", "ms"])), min_size=1, max_size=6)


@given(text=st.text() | st.from_regex(r"[0-9.:TZ+\-hmsu ]{0,40}") | st.from_regex(r"(Mon|Tue), [0-9A-Za-z: +\-]{0,30}"))
def test_any_text_is_survived(text: str) -> None:
    """Whatever a provider sends: a wait between 0 and a day, or none."""
    for wait in (wait_s(text, now_s=NOW_S), retry_after_s({"retry-after-ms": text}, text, now_s=NOW_S)):
        assert wait is None or 0 <= wait <= LONGEST_S
    assert clock_s({"date": text}, default_s=1) is not None


@given(parts=_durations)
def test_durations_are_read_whole(parts: list[tuple[int, str]]) -> None:
    """A duration of any parts is their sum."""
    seconds = {"h": 3600, "m": 60, "s": 1, "ms": 0.001}

    wait = wait_s("".join(f"{number}{unit}" for number, unit in parts), now_s=NOW_S)

    assert wait == pytest.approx(min(LONGEST_S, sum(number * seconds[unit] for number, unit in parts)))
