"""Rate headers in the dialects of providers, after a call was judged. Pure.

openai            x-ratelimit-{limit,remaining,reset}-{requests,tokens} of the minute, resets as Go durations;
                  on a 429 retry-after and retry-after-ms
azure             x-ratelimit-remaining-{requests,tokens} alone; on a 429 the same, a day for what never fits
anthropic         anthropic-ratelimit-{requests,tokens,input-tokens,output-tokens}-{limit,remaining,reset}, resets
                  as RFC 3339; on a 429 retry-after
per-day-requests  as openai, but the requests are those of the day, as at Groq; on a 429 retry-after
none              nothing, ever
"""

import math
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from pipeline.sandbox.durations import go_duration, whole_ms
from pipeline.sandbox.limits import Limits, Verdict
from pipeline.sandbox.modes import Budget
from pipeline.sandbox.settings import Dimension, HeaderDialect

_DAY_S = 86_400
_MINUTE: Mapping[str, Dimension] = {"requests": "rpm", "tokens": "tpm"}
_DAY_REQUESTS: Mapping[str, Dimension] = {"requests": "rpd", "tokens": "tpm"}
_FOUR: Mapping[str, Dimension] = {**_MINUTE, "input-tokens": "itpm", "output-tokens": "otpm"}


def rate_headers(dialect: HeaderDialect, limits: Limits, now: float, *, unix_s: float) -> dict[str, str]:
    """What a response says of the account's budgets as they are at `now`; limits that it lacks aren't mentioned.

    Args:
        now: on the limits' clock. unix_s: the same moment on the calendar's, for dialects that write dates.
    """
    headers: dict[str, str] = {}
    match dialect:
        case "openai" | "per-day-requests":
            for name, budget in _named(_MINUTE if dialect == "openai" else _DAY_REQUESTS, limits):
                headers[f"x-ratelimit-limit-{name}"] = str(budget.limit)
                headers[f"x-ratelimit-remaining-{name}"] = _remaining(budget, now)
                headers[f"x-ratelimit-reset-{name}"] = go_duration(budget.full_s(now))
        case "azure":
            for name, budget in _named(_MINUTE, limits):
                headers[f"x-ratelimit-remaining-{name}"] = _remaining(budget, now)
        case "anthropic":
            for name, budget in _named(_FOUR, limits):
                headers[f"anthropic-ratelimit-{name}-limit"] = str(budget.limit)
                headers[f"anthropic-ratelimit-{name}-remaining"] = _remaining(budget, now)
                headers[f"anthropic-ratelimit-{name}-reset"] = _moment(unix_s + budget.full_s(now))
        case "none":
            pass
    return headers


def retry_headers(dialect: HeaderDialect, verdict: Verdict) -> dict[str, str]:
    """When a refused call may come back; nothing where nobody knows, or where it never may."""
    wait_s = verdict.wait_s
    if dialect == "azure" and math.isinf(wait_s):
        wait_s = _DAY_S  # seen there: a call that can never fit is told to come back tomorrow
    if dialect == "none" or wait_s == 0 or math.isinf(wait_s):
        return {}
    headers = {"retry-after": str(math.ceil(wait_s))}
    if dialect in ("openai", "azure"):
        headers["retry-after-ms"] = str(whole_ms(wait_s))
    return headers


def _named(names: Mapping[str, Dimension], limits: Limits) -> list[tuple[str, Budget]]:
    return [(name, limits.budgets[dimension]) for name, dimension in names.items() if dimension in limits.budgets]


def _remaining(budget: Budget, now: float) -> str:
    return str(max(0, math.floor(budget.level(now))))


def _moment(unix_s: float) -> str:
    # Whole seconds, as there; rounded up, so that whoever waits for it isn't too early.
    return (datetime.fromtimestamp(0, UTC) + timedelta(seconds=math.ceil(unix_s))).isoformat().replace("+00:00", "Z")
