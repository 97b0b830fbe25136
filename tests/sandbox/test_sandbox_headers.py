"""Headers say what the budgets hold: read back by a parser of the tests' own, in every dialect."""

import re
from datetime import datetime
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.sandbox.headers import rate_headers, retry_headers
from pipeline.sandbox.limits import Limits, Verdict, costs_of
from pipeline.sandbox.settings import Dimension, Enforcement, HeaderDialect

_LIMITS: dict[Dimension, int] = {"rpm": 60, "tpm": 6000, "itpm": 4000, "otpm": 3000, "rpd": 900}
_UNIX_S = 1_800_000_000.25
_OPENAI: dict[str, Dimension] = {"requests": "rpm", "tokens": "tpm"}
_GROQ: dict[str, Dimension] = {"requests": "rpd", "tokens": "tpm"}
_ANTHROPIC: dict[str, Dimension] = {**_OPENAI, "input-tokens": "itpm", "output-tokens": "otpm"}
MODES = st.sampled_from(get_args(Enforcement))
CALLS = st.lists(st.tuples(st.floats(0, 20), st.integers(1, 90), st.integers(1, 90)), min_size=1, max_size=40)


def _go_seconds(text: str) -> float:
    """A Go duration, written down independently of the code that wrote it."""
    match = re.fullmatch(r"(?:(\d+)h)?(?:(\d+)m)?(?:([\d.]+)s)?", text)
    if match is None:
        return float(text.removesuffix("ms")) / 1000
    hours, minutes, seconds = (float(part or 0) for part in match.groups())
    return hours * 3600 + minutes * 60 + seconds


def _spent(mode: Enforcement, calls: list[tuple[float, int, int]]) -> tuple[Limits, float]:
    """An account after some calls, and the time."""
    limits, now = Limits(mode, _LIMITS, 60), 1000.0
    for pause_s, prompt, output in calls:
        now += pause_s
        limits.charge(costs_of(prompt_tokens=prompt, output_tokens=output), now)
    return limits, now


@pytest.mark.parametrize(("dialect", "names"), [("openai", _OPENAI), ("per-day-requests", _GROQ)])
@given(mode=MODES, calls=CALLS)
def test_openais_six_headers_are_the_budgets(
    dialect: HeaderDialect, names: dict[str, Dimension], mode: Enforcement, calls: list[tuple[float, int, int]]
) -> None:
    """Limit, remaining and reset of requests (of the day at some) and tokens; after the reset all of it is free."""
    limits, now = _spent(mode, calls)

    headers = rate_headers(dialect, limits, now, unix_s=_UNIX_S)

    assert len(headers) == 6
    for name, dimension in names.items():
        budget = limits.budgets[dimension]
        assert headers[f"x-ratelimit-limit-{name}"] == str(budget.limit)
        assert int(headers[f"x-ratelimit-remaining-{name}"]) <= budget.level(now)
        assert int(headers[f"x-ratelimit-remaining-{name}"]) > budget.level(now) - 1
        reset_s = _go_seconds(headers[f"x-ratelimit-reset-{name}"])
        assert budget.full_s(now) <= reset_s + 1e-9 < budget.full_s(now) + 0.002


@given(mode=MODES, calls=CALLS)
def test_azure_says_only_what_remains(mode: Enforcement, calls: list[tuple[float, int, int]]) -> None:
    """Two headers and no more: neither limits nor resets."""
    limits, now = _spent(mode, calls)

    assert rate_headers("azure", limits, now, unix_s=_UNIX_S) == {
        "x-ratelimit-remaining-requests": str(int(limits.budgets["rpm"].level(now))),
        "x-ratelimit-remaining-tokens": str(int(limits.budgets["tpm"].level(now))),
    }


@given(mode=MODES, calls=CALLS)
def test_anthropic_says_dates_for_all_four(mode: Enforcement, calls: list[tuple[float, int, int]]) -> None:
    """Requests, tokens, input and output tokens, each with the calendar time at which it is whole again."""
    limits, now = _spent(mode, calls)

    headers = rate_headers("anthropic", limits, now, unix_s=_UNIX_S)

    assert len(headers) == 12
    for name, dimension in _ANTHROPIC.items():
        budget = limits.budgets[dimension]
        assert headers[f"anthropic-ratelimit-{name}-limit"] == str(budget.limit)
        assert headers[f"anthropic-ratelimit-{name}-remaining"] == str(int(budget.level(now)))
        reset = headers[f"anthropic-ratelimit-{name}-reset"]
        assert reset.endswith("Z")
        assert 0 <= datetime.fromisoformat(reset).timestamp() - (_UNIX_S + budget.full_s(now)) < 1


def test_limits_that_an_account_lacks_arent_mentioned() -> None:
    """No header for a limit that isn't there, and none at all in the dialect without any."""
    limits = Limits("sliding", {"rpm": 5}, 60)

    assert len(rate_headers("anthropic", limits, 0, unix_s=_UNIX_S)) == 3
    assert len(rate_headers("openai", limits, 0, unix_s=_UNIX_S)) == 3
    assert rate_headers("none", limits, 0, unix_s=_UNIX_S) == {}


@pytest.mark.parametrize(
    ("dialect", "soon", "never"),
    [("openai", {"retry-after": "3", "retry-after-ms": "2500"}, {}),
     ("azure", {"retry-after": "3", "retry-after-ms": "2500"}, {"retry-after": "86400", "retry-after-ms": "86400000"}),
     ("anthropic", {"retry-after": "3"}, {}), ("per-day-requests", {"retry-after": "3"}, {}), ("none", {}, {})],
)  # fmt: skip
def test_a_429_says_when_to_come_back(dialect: HeaderDialect, soon: dict[str, str], never: dict[str, str]) -> None:
    """Rounded up; nothing for a call that never fits (but for Azure's day), nor where calls in flight are too many."""
    assert retry_headers(dialect, Verdict("tpm", 2.5)) == soon
    assert retry_headers(dialect, Verdict("tpm", float("inf"))) == never
    assert retry_headers(dialect, Verdict("max_in_flight", 0.0)) == {}
