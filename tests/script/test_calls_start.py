"""Calls start within their time or give their grant back, on a real server and a clock of ours."""

from __future__ import annotations

import pytest

from tests.script import views
from tests.script.bench import Bench, Held

pytestmark = pytest.mark.anyio


async def granted(bench: Bench, *names: str) -> list[Held]:
    """Requests with a grant, read by worker `w1`."""
    await bench.send(*(bench.request(name, tenant=name) for name in names))
    return await bench.take("premium")


async def test_a_call_starts_within_its_time(bench: Bench) -> None:
    """Up to half a second after the grant the call may be made, on the charge that was taken."""
    held = await granted(bench, "a")
    before = await views.budget(bench)
    await bench.advance(0.5)

    assert await bench.start(held) == ["started"]

    assert await views.budget(bench) == before
    assert (await views.status(bench, "a"))["state"] == "calling"


async def test_a_late_grant_is_given_back_in_full(bench: Bench) -> None:
    """A grant not used in time is undone to the last token, and the request waits at its old place."""
    held = await granted(bench, "a", "b")
    level = await views.level(bench)
    await bench.advance(0.500_001)

    assert await bench.start(held[:1]) == ["given_back"]

    assert (await views.budget(bench))[:2] == (1, 100)
    assert await views.level(bench) == pytest.approx(level + 100 + 0.5 * 10_000 / 62, abs=0.01)
    assert await views.waiting(bench) == ["a"]
    assert await views.lengths(bench) == {"premium": 1, "deferred": 1}


async def test_a_given_back_request_keeps_its_place(bench: Bench) -> None:
    """Whoever had to give a grant back goes before those that came later."""
    (early,) = await granted(bench, "early")
    await bench.advance(1)
    await bench.send(bench.request("big", prompt_tokens=900, tenant="big"), bench.request("late", tenant="late"))
    assert await views.waiting(bench) == ["late"]

    assert await bench.start([early]) == ["given_back"]

    score = {
        name: await bench.redis("ZSCORE", bench.keys.key("backlog:interactive"), name) for name in ("early", "late")
    }
    assert score["early"] == score["late"] - 1000


async def test_a_give_back_goes_to_its_slot_though_the_clock_stepped_back(bench: Bench) -> None:
    """After a fail-over to a slower clock a grant is still given back in full, out of the slot that holds it."""
    (first,) = await granted(bench, "first")
    await bench.start([first])
    await bench.advance(-10)
    (second,) = await granted(bench, "second")
    await bench.advance(10.6)

    assert await bench.start([second]) == ["given_back"]

    assert (await views.budget(bench))[:2] == (1, 100)
    assert await views.exists(bench, "grants") == ["grants"]


async def test_a_given_back_grant_is_charged_anew(bench: Bench) -> None:
    """The next grant of the same attempt is a grant of its own: calls at the provider equal grants started."""
    held = await granted(bench, "a")
    await bench.advance(1)
    await bench.start(held)
    await bench.drain(*await bench.notices())
    again = await bench.take("premium")

    assert await bench.start(again) == ["started"]

    assert await views.budget(bench) == (1, 100, 2, 200)


async def test_only_the_owner_starts_a_call(bench: Bench) -> None:
    """A worker that was taken for dead doesn't call when another has taken its entry over."""
    held = await granted(bench, "a")
    await bench.redis("XCLAIM", bench.keys.key("premium"), "premium", "w2", 0, held[0].entry)
    before = await views.snapshot(bench)

    assert await bench.start(held, consumer="w1") == ["gone"]

    assert await views.snapshot(bench) == before
    assert await bench.start(held, consumer="w2") == ["started"]


async def test_c22_who_asks_again_for_want_of_a_reply_is_charged_once(bench: Bench) -> None:
    """The reply to a start is lost, so no call was made: in time it starts after all, too late it is undone in full."""
    held = await granted(bench, "a")
    assert await bench.start(held) == ["started"]
    before = await views.budget(bench)

    assert await bench.start(held, again=True) == ["started"]
    assert await views.budget(bench) == before
    await bench.advance(11)
    assert await bench.start(held, again=True) == ["given_back"]

    assert (await views.budget(bench))[:2] == (0, 0)
    assert await views.waiting(bench) == ["a"]
    assert await bench.start(held, again=True) == ["gone"]


async def test_a_call_that_may_have_been_made_starts_no_second_one(bench: Bench) -> None:
    """Whoever finds a call started by somebody can't know: the charge stands, and the request is charged anew."""
    held = await granted(bench, "a")
    assert await bench.start(held) == ["started"]
    before = await views.budget(bench)

    answers = [await bench.start(held) for _ in range(2)]

    assert answers == [["given_back"], ["gone"]]
    assert await views.budget(bench) == before
    assert await views.waiting(bench) == ["a"]
    assert await views.lengths(bench) == {"deferred": 1}


async def test_a_repeated_give_back_gives_nothing_twice(bench: Bench) -> None:
    """A give-back whose reply was lost changes nothing when it is asked for again."""
    held = await granted(bench, "a")
    await bench.advance(1)
    assert await bench.start(held) == ["given_back"]
    before = await views.snapshot(bench)

    assert await bench.start(held) == ["gone"]

    assert await views.snapshot(bench) == before


async def test_an_answered_request_is_not_called(bench: Bench) -> None:
    """Once an id has its result, no call is paid for it: its grant is given back and its entry goes away."""
    (first,) = await granted(bench, "a")
    await bench.finish(first._replace(entry="1-1"))
    assert await bench.start([first]) == ["gone"]

    assert await views.lengths(bench) == {}
    assert await views.exists(bench, "grants", "reservations") == []


async def test_after_its_deadline_a_call_is_not_made(bench: Bench) -> None:
    """Between grant and call the deadline may pass: then the request is answered, its grant given back."""
    await bench.send(bench.request("a", deadline_ms=bench.now_ms + 100))
    held = await bench.take("premium")
    await bench.advance(0.1)

    assert await bench.start(held) == ["given_back"]

    assert (await views.budget(bench))[:2] == (0, 0)
    assert (await bench.drain(*await bench.notices())).expired == 1


async def test_a_call_without_its_grant_goes_back(bench: Bench) -> None:
    """When the grant was lost with Redis's state, the request is granted anew before it is called."""
    held = await granted(bench, "a")
    await bench.redis("DEL", bench.keys.key("grants"), bench.keys.key("reservations"))
    before = await views.budget(bench)

    assert await bench.start(held) == ["given_back"]

    assert (await views.budget(bench))[:2] == before[:2]
    assert await views.waiting(bench) == ["a"]


async def test_a_call_that_was_not_made_costs_nothing(bench: Bench) -> None:
    """A worker that was kept from a started call for too long gives it back to the last token, at its old place."""
    held = await granted(bench, "a")
    level = await views.level(bench)
    assert await bench.start(held) == ["started"]

    assert await bench.give_back(held) == 1

    assert (await views.budget(bench))[:2] == (0, 0)
    assert await views.level(bench) == pytest.approx(level + 100)
    assert await views.waiting(bench) == ["a"]
    assert await bench.give_back(held) == 0, "asked again after a lost reply"
    assert (await views.budget(bench))[:2] == (0, 0)


async def test_only_the_owner_gives_a_call_back(bench: Bench) -> None:
    """A worker that was taken for dead can't undo the charge of whoever calls in its place."""
    held = await granted(bench, "a")
    await bench.start(held)
    await bench.redis("XCLAIM", bench.keys.key("premium"), "premium", "w2", 0, held[0].entry)
    before = await views.budget(bench)

    assert await bench.give_back(held) == 0

    assert await views.budget(bench) == before


async def test_what_was_answered_meanwhile_is_not_put_back(bench: Bench) -> None:
    """A call given back after another attempt brought the answer is done with."""
    held = await granted(bench, "a")
    await bench.start(held)
    await bench.redis("HSET", bench.keys.status("a"), "terminal", "0")

    assert await bench.give_back(held) == 1

    assert await views.waiting(bench) == []
    await bench.redis("DEL", bench.keys.status("a"))
