"""What comes of a cancellation: who is told, who gets a turn, and what becomes of all that was on its way."""

from __future__ import annotations

import msgspec
import pytest

from tests.script import views
from tests.script.bench import Bench
from tests.script.cancelling import METADATA, cancelled, claim
from tokenweir.wire import Result

pytestmark = pytest.mark.anyio


async def test_a_result_stands(bench: Bench) -> None:
    """A request that has its answer keeps it: cancelling tells what it is, and changes nothing."""
    (call,) = await views.called(bench, "a")
    await bench.redis("HSET", bench.keys.status("a"), "entry", "ingest 1-1")
    await bench.finish(call, content="Yes.")
    before = await views.snapshot(bench)

    result = await bench.cancel("a")

    assert result is not None
    assert (result.status, result.content) == ("ok", "Yes.")
    assert await views.snapshot(bench) == before


async def test_cancelling_twice_is_cancelling_once(bench: Bench) -> None:
    """When the reply is lost, asking again brings the same result and writes nothing."""
    await claim(bench, "a")
    first = await cancelled(bench, "a")
    before = await views.snapshot(bench)

    second = await bench.cancel("a")

    assert second is not None
    assert second.json() == first.json()
    assert await views.snapshot(bench) == before


async def test_everybody_who_waits_is_told(bench: Bench) -> None:
    """Whoever waits for a cancelled request's result, or reads its deltas, gets it at once."""
    await bench.redis("HSET", bench.keys.status("a"), "inbox", "one two")
    await claim(bench, "a", stream=True)

    result = await cancelled(bench, "a")

    for stream in (bench.keys.inbox("one"), bench.keys.inbox("two"), bench.keys.reply("a")):
        ((_, fields),) = await bench.redis("XRANGE", stream, "-", "+")
        assert fields[b"kind"] == b"done"
        assert msgspec.json.decode(fields[b"result"], type=Result).json() == result.json()
        assert 0 < await bench.redis("TTL", stream) <= 3600


async def test_results_are_kept_as_long_as_workers_say(bench: Bench) -> None:
    """A cancelled request can be asked for as long as any other that ended, as the pool's configuration says."""
    await bench.redis("HSET", bench.keys.key("limits"), "@results", "50 90")
    await claim(bench, "a")

    await cancelled(bench, "a")

    assert 80 < await bench.redis("TTL", bench.keys.status("a")) <= 90


async def test_those_behind_the_first_get_their_turn(bench: Bench) -> None:
    """When the first in line goes, small work behind it doesn't wait for the budget that it waited for."""
    await bench.fill()
    await claim(bench, "large", prompt_tokens=900, tenant="a")
    await bench.admit(await bench.take("gate:interactive"))
    assert await bench.send(bench.request("small", tenant="b", priority="standard")) == ["deferred"]
    await bench.advance(1.5)
    assert (await bench.drain(*await bench.notices())).premium == 0
    assert await bench.redis("HEXISTS", bench.keys.key("limits"), "@head") == 1

    await cancelled(bench, "large")

    assert (await bench.drain(*await bench.notices())).premium == 1
    assert await bench.redis("HEXISTS", bench.keys.key("limits"), "@head") == 0


@pytest.mark.parametrize("ends", ["cancelled", "late", "answered"])
async def test_nothing_is_kept_for_one_that_has_gone(bench: Bench, ends: str) -> None:
    """Newcomers stand back for the first in line after it has waited long, and no longer once it is gone."""
    await bench.fill()
    deadline_ms = bench.now_ms + 5_000 if ends == "late" else 0
    await claim(bench, "first", prompt_tokens=4_900, tenant="a", deadline_ms=deadline_ms)
    await bench.admit(await bench.take("gate:interactive"))
    since_us, till_us = bench.now_us - 30_000_000, bench.now_us + 30_000_000
    score = (await bench.redis("ZSCORE", bench.keys.key("backlog:interactive"), "first")) or 0
    await bench.redis("HSET", bench.keys.key("limits"), "@head", f"{since_us} {till_us} {score:.0f} primary first")
    await bench.advance(5)
    assert await bench.send(bench.request("early", tenant="b", priority="standard")) == ["deferred"]

    if ends == "cancelled":
        await cancelled(bench, "first")
    elif ends == "answered":
        (twin,) = await bench.put("edge", bench.request("first"))
        await bench.finish(twin)
    await bench.drain(*await bench.notices())

    assert await bench.redis("HEXISTS", bench.keys.key("limits"), "@head") == 0
    assert await bench.send(bench.request("newcomer", tenant="c", priority="standard")) == ["premium"]


async def test_what_is_left_of_it_goes_nowhere(bench: Bench) -> None:
    """A retry, a call given back, or an entry taken over of a cancelled request ends there, with all that it held."""
    await bench.beat(premium=10)
    for name in ("retried", "given back", "taken over"):
        await claim(bench, name.replace(" ", "-"), tenant=name)
    await bench.admit(await bench.take("gate:interactive"))
    retried, back, over = await bench.take("premium")
    await bench.start([retried, back, over])
    for held in (retried, back, over):
        await cancelled(bench, held.request.id)

    assert await bench.retry(retried) == 0
    assert await bench.give_back([back]) == 1
    again = msgspec.structs.replace(over.request, attempt=2)
    await bench.forward([over._replace(request=again)], "gate:interactive")
    assert await bench.admit(await bench.take("gate:interactive")) == [("gone", "")]
    await bench.drain(*await bench.notices())

    assert await views.lengths(bench) == {}
    assert await views.waiting(bench) == []
    assert await views.exists(bench, "grants", "reservations") == []
    assert (await views.budget_kept(bench)).get("in_flight", 0) == 0
    assert (await views.budget(bench))[:2] == (2, 200)


@pytest.mark.parametrize("lane", ["ingest", "gate:interactive"])
async def test_a_second_life_is_cancelled_by_itself(bench: Bench, lane: str) -> None:
    """A dead letter that lives again can be cancelled: that life gets its own result, the first one keeps its."""
    request = bench.request("a", metadata=msgspec.Raw(METADATA))
    if lane == "ingest":
        (held,) = await bench.put("ingest", request)
    else:
        await bench.forward(await bench.put("ingest", request), lane, claims=True)
        (held,) = await bench.take(lane)
    await bench.bury(held)
    dead = await bench.cancel("a")
    ((letter, _),) = await bench.redis("XRANGE", bench.keys.key("dead"), "-", "+")
    again = msgspec.structs.replace(request, replay=1)
    bind = {"status": bench.keys.status("a"), "target": bench.keys.key(lane)}
    args = (letter, 1, 0, METADATA, "id", "a", "metadata", METADATA, "request", msgspec.json.encode(again))
    await bench.run("dead_replay", args, bind=bind)

    result = await bench.cancel("a")

    assert dead is not None
    assert dead.code == "dead_letter"
    assert result is not None
    assert (result.status, result.replay, bytes(result.metadata)) == ("cancelled", 1, METADATA)
    assert await views.answers(bench) == {("a", "0"): 1, ("a", "1"): 1}


async def test_a_raw_second_life_is_cancelled_as_what_it_says_it_is(bench: Bench) -> None:
    """An entry that somebody wrote with a replay number gets the result of that life."""
    request = bench.request("a", replay=3)
    await bench.forward(await bench.put("ingest", request), "gate:interactive", claims=True)

    result = await cancelled(bench, "a")

    assert result.replay == 3
    assert await bench.admit(await bench.take("gate:interactive")) == [("gone", "")]
