"""Many programs, one budget: judged by what they did, not by what we counted."""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from pipeline.sandbox.modes import Sliding
from tests.limiter.books import LIMITS, Books, Open
from tokenweir import LimitReached
from tokenweir.keys import Keys
from tokenweir.terms import Allowed, terms

pytestmark = pytest.mark.anyio

_ROOT = Path(__file__).parents[2]


async def test_c16_five_of_forty_pass(opened: Open, books: Books) -> None:
    """1,000 tokens are left and 40 callers of eight programs ask for 175 at the same instant: five go, 20 times."""
    async with AsyncExitStack() as stack:
        limiters = [await stack.enter_async_context(opened(limits={"primary": LIMITS})) for _ in range(8)]
        for _ in range(20):
            before = await books.used("tpm")
            await books.warm(tpm=1000)
            calls = [limiter.reserve(tokens=175, wait_s=0) for limiter in limiters for _ in range(5)]
            answers = await asyncio.gather(*(call.__aenter__() for call in calls), return_exceptions=True)

            assert sum(isinstance(answer, LimitReached) for answer in answers) == 35
            assert await books.used("tpm") - before == 5 * 175


@pytest.mark.slow
@pytest.mark.one_server("it is about time, and takes 19 s")
async def test_twelve_programs_stay_within_one_limit_and_use_it(redis_url: str, keys: Keys, opened: Open) -> None:
    """No window of 4 s holds more than 40,000 tokens or 4,000 calls, and 95 % of what can be used is used."""
    limits = {"rpm": 4_000, "tpm": 40_000}
    # A large burst, so that what a busy machine delays can be made up for.
    settings: dict[str, Any] = {"window_s": 4, "send_within_s": 0.4, "enforcement": "continuous"}
    async with opened(limits={"primary": limits | settings}) as limiter, limiter.reserve(tokens=1):
        pass  # not cold any more
    until = time.monotonic() + 16
    words = [redis_url, keys.pool]
    programs = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.limiter.spender", *words, str(seed), "800", str(until)),
            cwd=_ROOT,
            stdout=asyncio.subprocess.PIPE,
        )
        for seed in range(12)
    ]
    said = await asyncio.gather(*(program.communicate() for program in programs))
    calls = sorted(
        (float(at_s), int(tokens))
        for out, _ in said
        for at_s, tokens in (line.split() for line in out.decode().splitlines())
    )

    assert [program.returncode for program in programs] == [0] * 12
    requests_judge, tokens_judge = (Sliding(limit, 4) for limit in limits.values())
    for at_s, tokens in calls:
        for judge, cost in ((requests_judge, 1), (tokens_judge, tokens)):
            assert judge.level(at_s) >= cost, f"too much at {at_s}"
            judge.take(cost, at_s)
    # Two rounds of the window, W + J and a slot each, while all programs were there: wherever they begin, the same.
    limit = terms(Allowed(limits=limits, **settings)).limits[1]
    rounds_s = 2 * (limit.window_us + limit.late_us + limit.slot_us) / 1e6
    used = sum(tokens for at_s, tokens in calls if until - 1 - rounds_s <= at_s < until - 1)
    assert used >= 0.95 * 2 * limit.limit
