"""How entries pass from stage to stage and come to their end: nothing lost, nothing twice."""

from __future__ import annotations

import msgspec
import pytest

from tests.script import views
from tests.script.bench import Bench, Held
from tests.script.views import called

pytestmark = pytest.mark.anyio


# Forward


async def test_an_entry_is_handed_over_once(bench: Bench) -> None:
    """A hand-over whose reply was lost is not made twice."""
    held = await bench.put("ingest", *(bench.request(name, priority="standard") for name in "ab"))

    assert await bench.forward(held, "gate:standard", claims=True) == ["moved", "moved"]
    before = await views.snapshot(bench)
    assert await bench.forward(held, "gate:standard", claims=True) == ["gone", "gone"]

    assert await views.snapshot(bench) == before
    assert await views.lengths(bench) == {"gate:standard": 2}


async def test_of_several_entries_with_one_id_one_flows_on(bench: Bench) -> None:
    """A request that was added twice is carried out once, whether the second comes at once or later."""
    held = await bench.put("ingest", bench.request("a"), bench.request("a"))
    assert await bench.forward(held, "gate:interactive", claims=True) == ["moved", "repeat"]
    later = await bench.put("ingest:batch", bench.request("a"))

    assert await bench.forward(later, "gate:batch", claims=True) == ["repeat"]

    assert await views.lengths(bench) == {"gate:interactive": 1}


async def test_the_same_entry_id_in_two_streams_is_two_entries(bench: Bench) -> None:
    """Two entries of one request, written to two streams in the same millisecond, are still one request."""
    body = msgspec.json.encode(bench.request("a"))
    for lane in ("ingest", "ingest:batch"):
        await bench.redis("XADD", bench.keys.key(lane), "1796000000000-7", "request", body)

    first = await bench.forward(await bench.take("ingest"), "gate:interactive", claims=True)
    second = await bench.forward(await bench.take("ingest:batch"), "gate:batch", claims=True)

    assert (first, second) == (["moved"], ["repeat"])


@pytest.mark.parametrize("wait_s", [0.0, 60.0], ids=["waits for budget", "waits for its time"])
async def test_a_copy_that_waits_goes_with_the_result(bench: Bench, wait_s: float) -> None:
    """What was taken over from a live owner waits for another attempt; the owner's answer ends that wait, or it would
    be called for again when its status has been forgotten."""
    (call,) = await called(bench, "a")
    await bench.retry(call, wait_s=wait_s)
    assert await views.waiting(bench) == ["a"]

    assert await bench.finish(call) == [1]

    assert await views.waiting(bench) == []
    assert await views.exists(bench, "backlog:meta", "backlog:bodies", "backlog:due", "tenants") == []


async def test_an_answered_id_flows_no_further(bench: Bench) -> None:
    """Once an id has its result, what is left of it is dropped at the next hand-over."""
    (call,) = await called(bench, "a")
    (other,) = await bench.put("edge", bench.request("a"))
    await bench.finish(call)

    assert await bench.forward([other], "gate:interactive") == ["gone"]
    assert await views.lengths(bench) == {}


# Finish


async def test_the_first_finisher_wins_even_if_its_entry_was_taken_over(bench: Bench) -> None:
    """A paid answer isn't thrown away because its worker was slow; what comes second is dropped."""
    (call,) = await called(bench, "a")
    again = call._replace(request=msgspec.structs.replace(call.request, attempt=2))
    assert await bench.forward([again], "gate:interactive") == ["moved"]

    assert await bench.finish(call, used=100) == [1]

    assert (await views.budget(bench)).tokens == 100
    (second,) = await bench.take("gate:interactive")
    assert await bench.admit([second]) == [("gone", "")]
    assert await views.answers(bench) == {("a", "0"): 1}
    assert await views.lengths(bench) == {}


async def test_a_repeated_finish_writes_and_settles_nothing_twice(bench: Bench) -> None:
    """When the reply to a finish is lost, its repeat adds no result and charges no overrun again."""
    (call,) = await called(bench, "a")
    assert await bench.finish(call, used=150) == [1]
    before = await views.snapshot(bench)

    assert await bench.finish(call, used=150) == [0]

    assert await views.snapshot(bench) == before
    assert (await views.budget(bench)).tokens == 150


async def test_a_result_reaches_everybody_who_waits(bench: Bench) -> None:
    """The terminal result goes to `responses`, to the status, to each inbox and to the request's own stream."""
    await bench.redis("HSET", bench.keys.status("a"), "inbox", "one two")
    (call,) = await called(bench, "a")

    await bench.finish(call, streamed=True, content="Yes.")

    assert await views.answers(bench) == {("a", "0"): 1}
    said = await views.status(bench, "a")
    assert (said["state"], said["terminal"]) == ("done", "0")
    assert msgspec.json.decode(said["result"])["content"] == "Yes."
    for stream in (bench.keys.inbox("one"), bench.keys.inbox("two"), bench.keys.reply("a")):
        ((_, fields),) = await bench.redis("XRANGE", stream, "-", "+")
        assert (fields[b"kind"], fields[b"id"]) == (b"done", b"a")
        assert 0 < await bench.redis("TTL", stream) <= 3600
    assert 0 < await bench.redis("TTL", bench.keys.status("a")) <= 3600


async def test_a_finish_wakes_the_drain_only_if_something_waits(bench: Bench) -> None:
    """A freed slot is worth a look at the backlog, unless there is none."""
    (first, second) = await called(bench, "a", "b")
    await bench.finish(first)
    assert await views.lengths(bench) == {"premium": 1}
    await bench.send(bench.request("large", prompt_tokens=900, tenant="c"))
    await bench.notices()

    await bench.finish(second)

    assert len(await bench.notices()) == 1


async def test_a_broken_entry_with_a_known_id_doesnt_touch_the_request(bench: Bench) -> None:
    """Somebody's malformed entry that carries the id of a call under way costs that call nothing."""
    (call,) = await called(bench, "a")
    await bench.redis("HSET", bench.keys.status("a"), "entry", "1-1")
    (stranger,) = await bench.put("ingest", bench.request("a"))

    assert await bench.finish(stranger, status="error", code="invalid_request") == [0]

    assert await bench.redis("HLEN", bench.keys.key("grants")) == 1
    assert await bench.finish(call, used=130) == [1]
    assert (await views.budget(bench)).tokens == 130


async def test_a_refused_entry_is_the_first_to_carry_its_id(bench: Bench) -> None:
    """An error before the gate is a request's one result: a second entry with its id is a repeat."""
    (first, second) = await bench.put("ingest", bench.request("a"), bench.request("a"))

    assert await bench.finish(first, status="error", code="invalid_request") == [1]

    assert await bench.forward([second], "gate:interactive", claims=True) == ["repeat"]
    assert await bench.finish(second, status="error", code="invalid_request") == [0]


# Bury


async def test_a_dead_letter_keeps_everything_and_its_caller_gets_an_answer(bench: Bench) -> None:
    """What nobody could handle stands whole in `dead`, and its caller is told."""
    await bench.redis("XADD", bench.keys.key("gate:batch"), "*", "request", b"\xff\x00", "odd", "1")
    reply = await bench.redis("XREADGROUP", "GROUP", "gate", "w1", "STREAMS", bench.keys.key("gate:batch"), ">")
    entry = reply[0][1][0][0].decode()

    assert await bench.bury(Held("gate:batch", entry, bench.request("a"))) == [1]

    ((_, letter),) = await bench.redis("XRANGE", bench.keys.key("dead"), "-", "+")
    assert letter[b"field:request"] == b"\xff\x00"
    assert (letter[b"field:odd"], letter[b"stream"], letter[b"id"]) == (b"1", b"gate:batch", b"a")
    assert await views.answers(bench) == {("a", "0"): 1}
    assert (await views.status(bench, "a"))["dead"] == "1"
    assert await views.lengths(bench) == {}


async def test_a_repeated_burial_leaves_one_letter(bench: Bench) -> None:
    """When the reply is lost, there is still one dead letter and one answer."""
    (held,) = await bench.arrive(bench.request("a"))
    assert await bench.bury(held) == [1]
    before = await views.snapshot(bench)

    assert await bench.bury(held) == [0]

    assert await views.snapshot(bench) == before


async def test_an_entry_with_thousands_of_fields_can_be_buried(bench: Bench) -> None:
    """An entry that somebody filled with ten thousand fields doesn't stop the stage that gets rid of it."""
    fields = [text for index in range(10_000) for text in (f"f{index}", "x")]
    await bench.redis("XADD", bench.keys.key("ingest"), "*", *fields)
    reply = await bench.redis("XREADGROUP", "GROUP", "classify", "w1", "STREAMS", bench.keys.key("ingest"), ">")
    entry = reply[0][1][0][0].decode()

    assert await bench.bury(Held("ingest", entry, bench.request("a"))) == [1]

    ((_, letter),) = await bench.redis("XRANGE", bench.keys.key("dead"), "-", "+")
    assert msgspec.json.decode(letter[b"fields"]) == fields


async def test_an_id_stands_in_the_backlog_once(bench: Bench) -> None:
    """Should two entries of one id reach the backlog, its tenant counts one and is free when it's done."""
    await bench.send(bench.request("fill", prompt_tokens=960, tenant="f"))
    await bench.send(bench.request("a"))
    await bench.send(bench.request("a", priority="batch"))
    await bench.advance(60)
    assert await views.waiting(bench) == ["a"]

    assert (await bench.drain(*await bench.notices())).premium == 1

    assert await views.exists(bench, "tenants", "backlog:meta", "backlog:interactive", "backlog:batch") == []
