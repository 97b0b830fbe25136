"""What the drain waits for while a deployment is kept for the first of all that wait."""

from __future__ import annotations

import pytest

from tests.script.bench import Bench

pytestmark = pytest.mark.anyio


async def test_who_may_not_pass_the_first_isnt_looked_at_without_pause(bench: Bench) -> None:
    """While a large request has the budget kept for it, smaller ones that would fit don't keep a worker busy."""
    await bench.send(bench.request("before", prompt_tokens=4960, tenant="other"))
    large = bench.request("large", prompt_tokens=2960, priority="standard", entered_ms=bench.now_ms - 120_000)
    await bench.send(large)
    first = await bench.drain(*await bench.notices())
    await bench.advance(1)
    await bench.send(bench.request("small", tenant="third"))
    second = await bench.drain(first.kept, *await bench.notices())
    await bench.advance(27)  # the bucket has enough for the small one, and less than the large one needs

    third = await bench.drain(second.kept)

    assert (third.premium, third.kept) == (0, second.kept)
    assert third.wait_us > 1_000_000
    await bench.forward_to(bench.now_us + third.wait_us)
    assert (await bench.drain(third.kept)).premium == 1
    assert [held.request.id for held in await bench.take("premium")] == ["before", "large"]
