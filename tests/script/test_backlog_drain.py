"""The backlog on a real server, on a clock of ours: who goes next, when to look again, and what is left."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from pipeline.config import Deployment
from tests.script import views
from tests.script.bench import SECOND_US, Bench
from tests.script.conftest import Open

pytestmark = pytest.mark.anyio

SIMPLE: dict[str, Any] = {"simple": True, "edge": True}


async def order(bench: Bench) -> list[str]:
    """The ids that the drain serves, in their order, while time passes."""
    served: list[str] = []
    for _ in range(200):
        await bench.drain(*await bench.notices())
        served += [held.request.id for held in await bench.take("premium")]
        if not await views.waiting(bench):
            break
        await bench.advance(1)
    return served


async def test_higher_classes_go_first_and_then_the_older(bench: Bench) -> None:
    """Waiting work goes by class, and within a class in the order in which it came."""
    await bench.fill()
    for name, priority in (("b1", "batch"), ("i1", "interactive"), ("s1", "standard"), ("i2", "interactive")):
        await bench.advance(0.01)
        await bench.send(bench.request(name, priority=priority, tenant=name))

    assert await order(bench) == ["i1", "i2", "s1", "b1"]


async def test_old_work_of_a_low_class_goes_before_new_work_of_a_high_one(bench: Bench) -> None:
    """Nothing starves: a batch request that has waited ten windows longer goes before a fresh interactive one."""
    await bench.fill()
    old, young = bench.now_ms - 601_000, bench.now_ms - 599_000
    await bench.send(bench.request("old", priority="batch", entered_ms=old, tenant="a"))
    await bench.send(bench.request("young", priority="batch", entered_ms=young, tenant="b"))
    await bench.send(bench.request("new", tenant="c"))

    assert await order(bench) == ["old", "new", "young"]


async def test_lower_classes_wait_for_their_share(bench: Bench) -> None:
    """In the drain, too, batch leaves 30 % of the burst to others; interactive takes it at once."""
    await bench.fill()
    await bench.send(bench.request("b", priority="batch", tenant="b", prompt_tokens=60))
    wait_us = (await bench.drain(*await bench.notices())).wait_us

    assert wait_us == pytest.approx((100 + 300) / 10_000 * 62 * SECOND_US, rel=0.01)
    await bench.send(bench.request("i", tenant="i"))
    await bench.advance(0.7)
    assert (await bench.drain()).premium == 1


async def test_a_head_that_doesnt_fit_keeps_back_lower_classes(bench: Bench) -> None:
    """Small batch work can't eat up the budget that a large interactive request is waiting for."""
    await bench.fill()
    await bench.send(bench.request("large", prompt_tokens=460, tenant="a"))
    await bench.send(bench.request("small", priority="batch", prompt_tokens=1, output_tokens=0, tenant="b"))
    await bench.advance(2.5)  # some 400 tokens: the small one would fit, floor and all

    assert (await bench.drain()).premium == 0
    assert await order(bench) == ["large", "small"]


async def test_the_returned_wait_is_exact(bench: Bench) -> None:
    """A timer set to the returned wait serves the next request; a shorter one finds nothing, and no one polls."""
    await bench.fill()
    await bench.send(bench.request("a"))
    (notice,) = await bench.notices()
    first = await bench.drain(notice)

    assert (first.premium, first.kept) == (0, notice)
    await bench.forward_to(bench.now_us + first.wait_us - 2)
    assert (await bench.drain(notice)).premium == 0
    await bench.forward_to(bench.now_us + 3)
    assert (await bench.drain(notice))[:5] == (1, 0, 0, -1, "")


async def test_a_repeat_after_a_lost_reply_serves_nothing_twice(bench: Bench) -> None:
    """When the drain's reply is lost and it is asked again, nobody is charged or handed over twice."""
    await bench.fill()
    await bench.send(*(bench.request(name, tenant=name) for name in ("a", "b", "c")))
    notices = await bench.notices()
    await bench.advance(2)
    first = await bench.drain(*notices)
    before = await views.snapshot(bench)

    again = await bench.drain(*notices)

    assert (first.premium, again.premium) == (3, 0)
    assert await views.snapshot(bench) == before


async def test_simple_work_goes_to_an_idle_edge(opened: Open) -> None:
    """While premium is closed, a free edge takes simple requests out of the backlog, the oldest first."""
    bench = await opened(edge=0)
    await bench.fill()
    for name, more in (("c", {}), ("s1", SIMPLE), ("s2", SIMPLE)):
        await bench.advance(0.001)
        await bench.send(bench.request(name, tenant=name, **more))
    await bench.beat(edge=1)

    drained = await bench.drain(*await bench.notices())

    assert (drained.premium, drained.edge) == (0, 1)
    assert [held.request.id for held in await bench.take("edge")] == ["s1"]
    assert await views.waiting(bench) == ["c", "s2"]


async def test_a_retry_waits_for_its_due_time(bench: Bench) -> None:
    """A failed attempt comes again when it's due, not before, and doesn't hold up its tenant meanwhile."""
    await bench.send(bench.request("a"))
    (call,) = await bench.take("premium")
    await bench.start([call])
    assert await bench.retry(call, wait_s=20) == 1
    (notice,) = await bench.notices()

    drained = await bench.drain(notice)

    assert (drained.premium, drained.wait_us, drained.kept) == (0, 20 * SECOND_US, notice)
    assert await bench.send(bench.request("b")) == ["premium"]
    await bench.advance(20)
    assert (await bench.drain(notice)).premium == 1
    assert [(held.request.id, held.request.attempt) for held in await bench.take("premium")] == [("b", 1), ("a", 2)]


async def test_what_is_past_its_deadline_goes_back_for_its_answer(bench: Bench) -> None:
    """A request whose deadline passes in the backlog is answered soon after, not forgotten and not paid for."""
    await bench.fill()
    await bench.send(bench.request("late", deadline_ms=bench.now_ms + 1000, prompt_tokens=900))
    (notice,) = await bench.notices()
    wait_us = (await bench.drain(notice)).wait_us
    assert SECOND_US <= wait_us <= SECOND_US + 2000

    await bench.forward_to(bench.now_us + wait_us)
    drained = await bench.drain(notice)

    assert (drained.premium, drained.expired, drained.kept) == (0, 1, "")
    (held,) = await bench.take("gate:interactive")
    assert await bench.admit([held]) == [("expired", "")]


async def test_a_deadline_is_not_called_past_before_the_gate_agrees(bench: Bench) -> None:
    """Half a millisecond before the deadline the request still waits; it doesn't run in circles."""
    await bench.forward_to(bench.now_us + 600)
    await bench.fill()
    await bench.send(bench.request("a", prompt_tokens=900, deadline_ms=bench.now_ms + 1))

    assert (await bench.drain()).expired == 0


async def test_only_so_many_are_moved_at_once(bench: Bench) -> None:
    """A long backlog is served in portions, each asking for the next one at once."""
    await bench.fill()
    await bench.send(*(bench.request(f"r{i}", tenant=f"t{i}", prompt_tokens=1, output_tokens=1) for i in range(9)))
    notices = await bench.notices()
    await bench.advance(30)

    drained = await bench.drain(*notices, most=4)

    assert (drained.premium, drained.wait_us) == (4, 0)
    assert (await bench.drain(drained.kept, most=100)).premium == 5


async def test_without_free_slots_the_drain_looks_again_in_a_second(opened: Open) -> None:
    """While no worker has a free hand, waiting work stays, and the drain looks again soon."""
    bench = await opened(premium=0)
    await bench.send(bench.request("a"))

    drained = await bench.drain(*await bench.notices())

    assert (drained.premium, drained.wait_us) == (0, SECOND_US)
    assert (await views.budget(bench)).requests == 0


@pytest.mark.parametrize("premium", [0, 50])
async def test_with_nothing_waiting_nobody_looks_again(opened: Open, premium: int) -> None:
    """An idle pool is quiet: no timer, no notices, whether or not there are free hands."""
    bench = await opened(premium=premium)
    await bench.redis("XADD", bench.keys.key("deferred"), "*", "why", "test")

    drained = await bench.drain(*await bench.notices())

    assert drained == (0, 0, 0, -1, "")
    assert await views.lengths(bench) == {}
    assert await views.exists(bench, "backlog:timer") == []


async def test_what_limits_no_longer_allow_is_refused(opened: Open) -> None:
    """When an operator lowers a limit below a waiting request, it is answered; nobody waits behind it for ever."""
    bench = await opened()
    await bench.fill()
    await bench.send(bench.request("large", prompt_tokens=4_000, tenant="a"))
    await bench.send(bench.request("small", tenant="b"))
    await bench.seed([Deployment(name="primary", rpm=100, tpm=2_000)])

    drained = await bench.drain(*await bench.notices())

    assert drained.expired == 1
    (held,) = await bench.take("gate:interactive")
    assert await bench.admit([held]) == [("too_large", "")]
    assert await views.waiting(bench) == ["small"]


async def test_what_was_answered_meanwhile_is_not_paid_again(bench: Bench) -> None:
    """When a late finisher answers a request whose second attempt waits, that attempt is dropped, free of charge."""
    await bench.send(bench.request("a"))
    (call,) = await bench.take("premium")
    await bench.start([call])
    again = msgspec.structs.replace(call.request, attempt=2)
    await bench.fill(prompt_tokens=860)
    await bench.forward([call], "gate:interactive")
    (held,) = await bench.take("gate:interactive")
    assert await bench.admit([held._replace(request=again)]) == [("deferred", "")]
    assert await bench.finish(call) == [1]
    await bench.advance(60)
    before = await views.budget(bench)

    drained = await bench.drain(*await bench.notices())

    assert drained == (0, 0, 0, -1, "")
    assert (await views.budget(bench)).cum_requests == before.cum_requests
    assert await views.waiting(bench) == []
    assert (await views.status(bench, "a"))["state"] == "done"
