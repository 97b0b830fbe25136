"""Who waits for the next time at which something fits: one worker, and another when that one is gone."""

from __future__ import annotations

import pytest

from tests.script import views
from tests.script.bench import Bench

pytestmark = pytest.mark.anyio


async def test_all_notices_but_the_kept_one_are_acknowledged(bench: Bench) -> None:
    """One notice stays with whoever keeps the timer, so that its death is noticed; the others are done."""
    await bench.fill()
    for index in range(4):
        await bench.send(bench.request(f"r{index}", tenant=f"t{index}", prompt_tokens=500))
    notices = await bench.notices()

    drained = await bench.drain(*notices)

    assert drained.kept == notices[0]
    assert await views.pending(bench, "deferred") == 1
    assert await views.lengths(bench) == {"deferred": 1}


async def test_one_consumer_keeps_the_timer(bench: Bench) -> None:
    """Of several workers that look at the backlog one waits for it, and the others go back to work."""
    await bench.fill()
    await bench.send(bench.request("a", prompt_tokens=500))
    (mine,) = await bench.notices(consumer="w1")
    assert (await bench.drain(mine, consumer="w1")).kept == mine
    await bench.send(bench.request("b", prompt_tokens=500))
    (other,) = await bench.notices(consumer="w2")

    drained = await bench.drain(other, consumer="w2")

    assert (drained.wait_us, drained.kept) == (-1, "")
    assert await views.lengths(bench) == {"deferred": 1}


async def test_an_earlier_time_takes_the_timer_over(bench: Bench) -> None:
    """When something fits sooner than the keeper knows, whoever finds that out waits for it."""
    await bench.fill()
    await bench.send(bench.request("a", prompt_tokens=500))
    (mine,) = await bench.notices(consumer="w1")
    await bench.drain(mine, consumer="w1")
    await bench.send(bench.request("b", deadline_ms=bench.now_ms + 500, tenant="b", priority="batch"))
    (other,) = await bench.notices(consumer="w2")

    drained = await bench.drain(other, consumer="w2")

    assert drained.kept == other
    assert drained.wait_us == pytest.approx(500_000, abs=2000)
    assert (await bench.drain(mine, consumer="w1")).kept == ""


async def test_a_keeper_that_is_late_or_gone_is_replaced(bench: Bench) -> None:
    """A keeper that died holds nobody up: the next one to look takes the timer, soon after it ran out."""
    await bench.fill()
    await bench.send(bench.request("a", prompt_tokens=900), bench.request("b", prompt_tokens=900))
    (mine,) = await bench.notices(consumer="dead")
    wait_us = (await bench.drain(mine, consumer="dead")).wait_us
    await bench.forward_to(bench.now_us + wait_us + 600_000)
    await bench.redis("XADD", bench.keys.key("deferred"), "*", "why", "test")
    (other,) = await bench.notices(consumer="w2")

    drained = await bench.drain(other, consumer="w2")

    assert (drained.premium, drained.kept) == (1, other)


async def test_a_timer_without_a_notice_in_hand_is_passed_on(bench: Bench) -> None:
    """A worker that lost its notice doesn't keep a timer that nobody would take over: it gives a new notice."""
    await bench.fill()
    await bench.send(bench.request("a", prompt_tokens=500))
    await bench.drain(*await bench.notices())
    await bench.redis("DEL", bench.keys.key("backlog:timer"))

    assert (await bench.drain()).kept == ""

    (notice,) = await bench.notices(consumer="w2")
    assert (await bench.drain(notice, consumer="w2")).kept == notice


async def test_a_time_that_nobody_keeps_is_noticed_by_any_worker(bench: Bench) -> None:
    """When the keeper was killed and nothing else happens, the next beat of any worker has it served."""
    await bench.fill()
    await bench.send(bench.request("a", prompt_tokens=500, entered_ms=bench.now_ms))
    await bench.drain(*await bench.notices(consumer="killed"), consumer="killed")
    await bench.beat(consumer="w2")
    assert await bench.notices(consumer="w2") == [], "the time isn't over yet"
    await bench.advance(60)

    await bench.beat(consumer="w2")

    (overdue,) = await bench.notices(consumer="w2")
    assert (await bench.drain(overdue, consumer="w2")).premium == 1
