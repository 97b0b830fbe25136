"""What the limiter is given: amounts, times, limits; and what it says to mistakes."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.limiter.books import LIMITS, Books, Open
from tokenweir import ConfigError, Limiter, RequestError
from tokenweir.connection import Connection

pytestmark = pytest.mark.anyio

BAD = [-1, 1.5, math.nan, math.inf, True, "7", None, 10**13, [1]]


@pytest.mark.parametrize("value", BAD)
async def test_what_is_no_amount_is_refused_before_redis(limiter: Limiter, value: Any) -> None:
    """Negative, fractional, endless and other amounts are ValueErrors, at `reserve` and at `settle`."""
    if value is not None:
        with pytest.raises(ValueError, match="tokens"):
            limiter.reserve(tokens=value)
    with pytest.raises(ValueError, match="tokens"):
        limiter.reserve(prompt_tokens=1, output_tokens=value)
    with pytest.raises(ValueError, match="tokens"):
        limiter.reserve(prompt_tokens=value, output_tokens=1)
    async with limiter.reserve(tokens=1) as grant:
        with pytest.raises(ValueError, match="tokens"):
            grant.settle(tokens=value)


@pytest.mark.parametrize("value", [-1, math.nan, math.inf, True, "7"])
async def test_what_is_no_time_is_refused(limiter: Limiter, value: Any) -> None:
    """Waits and pauses are numbers of seconds."""
    with pytest.raises(ValueError, match="wait_s"):
        limiter.reserve(tokens=1, wait_s=value)
    async with limiter.reserve(tokens=1) as grant:
        with pytest.raises(ValueError, match="retry_after_s"):
            grant.refused(retry_after_s=value)


async def test_other_mistakes_are_named(limiter: Limiter, opened: Open) -> None:
    """Classes and limits that there aren't, tokens given twice or not at all."""
    with pytest.raises(ValueError, match="none of interactive, standard, batch"):
        limiter.reserve(tokens=1, priority="urgent")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="not both"):
        limiter.reserve(tokens=1, prompt_tokens=1, output_tokens=1)
    with pytest.raises(ValueError, match="this pool limits tokens"):
        await limiter.reserve().__aenter__()
    wrong: list[dict[str, Any]] = [
        {},
        {"primary": {}},
        {"primary": {"rps": 5}},
        {"a:b": {"rpm": 5}},
        {"primary": {"rpm": 0}},
    ]
    for limits in wrong:
        with pytest.raises(ConfigError):
            opened(limits=limits)
    with pytest.raises(ConfigError):
        Limiter("http://localhost")
    with pytest.raises(ConfigError):
        Limiter("redis://localhost", pool="}")


async def test_a_grant_is_entered_once(limiter: Limiter) -> None:
    """Each call needs a reservation of its own."""
    async with limiter.reserve(tokens=1) as grant:
        with pytest.raises(RuntimeError, match="once"):
            await grant.__aenter__()
    with pytest.raises(RuntimeError, match="once"):
        await grant.__aenter__()


async def test_a_limit_of_output_tokens_needs_both_amounts(opened: Open, connection: Connection) -> None:
    """A pool with a limit of output tokens can't be charged, or settled, by a total."""
    books = Books(connection)
    limits = {"primary": {"otpm": 1_000_000, "window_s": 100_000, "send_within_s": 60}}
    async with opened(limits=limits) as limiter:
        await books.warm()
        with pytest.raises(ValueError, match="apart"):
            await limiter.reserve(tokens=5).__aenter__()
        async with limiter.reserve(prompt_tokens=5, output_tokens=7) as grant:
            with pytest.raises(ValueError, match="apart"):
                grant.settle(tokens=5)
    assert await books.used("otpm") == 7


async def test_requests_alone_need_no_tokens(opened: Open, connection: Connection) -> None:
    """Where only requests are limited, `reserve()` will do."""
    books = Books(connection)
    async with opened(limits={"primary": {"rpm": 1_000, "window_s": 100_000, "send_within_s": 60}}) as limiter:
        await books.warm()
        async with limiter.reserve():
            pass
    assert await books.used("rpm") == 1


async def test_what_can_never_fit_is_said_at_once(limiter: Limiter, books: Books) -> None:
    """Larger than the limit itself: an error with a code, no wait, no charge, and nobody behind it waits."""
    with pytest.raises(RequestError) as caught:
        await limiter.reserve(tokens=LIMITS["tpm"] + 1).__aenter__()

    assert caught.value.code == "too_large_for_limit"
    assert await books.used("tpm") == 0


async def test_a_pool_without_limits_is_a_mistake(opened: Open) -> None:
    """Nothing is ever granted for want of limits: the error says where they come from."""
    with pytest.raises(ConfigError, match="start a worker of it first, or pass limits="):
        await opened().__aenter__()
    with pytest.raises(ConfigError, match="for second"):
        await opened(limits={"primary": LIMITS}, deployments=["second"]).__aenter__()
