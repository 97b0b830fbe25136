"""A cancelled request is answered at once, wherever it stands, and nothing of it stays behind."""

from __future__ import annotations

import pytest

from tests.script import views
from tests.script.bench import Bench
from tests.script.cancelling import METADATA, cancelled, claim, submit, told
from tests.script.conftest import Open

pytestmark = pytest.mark.anyio


async def test_an_unknown_request_is_not_cancelled(bench: Bench) -> None:
    """Cancelling an id that nobody has submitted changes nothing, also when somebody waits for it already."""
    await bench.redis("HSET", bench.keys.status("a"), "inbox", "one")
    await bench.redis("EXPIRE", bench.keys.status("a"), 60)
    before = await views.snapshot(bench)

    assert await bench.cancel("a") is None
    assert await bench.cancel("b") is None

    assert await views.snapshot(bench) == before


async def test_before_anybody_has_looked_at_it(bench: Bench) -> None:
    """A request that was only just submitted is answered with what its producer sent along, and goes no further."""
    await submit(bench, bench.request("a"), metadata=METADATA, stream="1")
    await bench.advance(2)

    result = await cancelled(bench, "a")

    assert (bytes(result.metadata), result.attempt, result.route) == (METADATA, 1, "none")
    assert await bench.redis("XLEN", bench.keys.reply("a")) == 1
    held = await bench.take("ingest")
    assert await bench.forward(held, "gate:interactive", claims=True) == ["gone"]
    assert await views.lengths(bench) == {}
    assert 0 < await bench.redis("TTL", bench.keys.status("a")) <= 3600


@pytest.mark.parametrize("metadata", [b"", b"[]", b'{"a":NaN}', b'{"a":"\xff"}', b'{"a":"\\ud800"}', b"{" * 3000])
async def test_metadata_that_is_none_breaks_no_result(bench: Bench, metadata: bytes) -> None:
    """What no engine would have taken for metadata doesn't make a cancelled request's result unreadable."""
    await submit(bench, bench.request("a"), metadata=metadata)

    result = await cancelled(bench, "a")

    assert bytes(result.metadata) == b"{}"


async def test_at_the_gate(bench: Bench) -> None:
    """A request that waits for the gate is answered, and the gate charges nothing for it."""
    await claim(bench, "a", priority="standard")
    held = await bench.take("gate:standard")

    result = await cancelled(bench, "a")

    assert bytes(result.metadata) == METADATA
    assert await bench.admit(held) == [("gone", "")]
    assert (await views.budget(bench)).cum_requests == 0
    assert await views.lengths(bench) == {}


@pytest.mark.parametrize("due", [False, True], ids=["eligible", "due later"])
async def test_in_the_backlog(bench: Bench, due: bool) -> None:
    """A waiting request leaves the backlog without a trace, and no worker has to be told."""
    if not due:
        await bench.fill()
    request = await claim(bench, "a", prompt_tokens=900, tenant="x", simple=True, deadline_ms=bench.now_ms + 90_000)
    if due:
        assert await bench.admit(await bench.take("gate:interactive")) == [("premium", "primary")]
        (call,) = await bench.take("premium")
        assert await bench.start([call]) == ["started"]
        assert await bench.retry(call, wait_s=30) == 1
    else:
        assert await bench.admit(await bench.take("gate:interactive")) == [("deferred", "")]
    assert await views.waiting(bench) == ["a"]

    result = await cancelled(bench, "a")

    assert (bytes(result.metadata), result.attempt) == (bytes(request.metadata), 2 if due else 1)
    left = [f"backlog:{name}" for name in views.BACKLOG if name != "timer"]
    assert await views.exists(bench, *left, "tenants", "cancelled") == []


@pytest.mark.parametrize("read", [False, True], ids=["unread", "read"])
async def test_with_a_grant_that_is_not_started(bench: Bench, read: bool) -> None:
    """A grant that no call was made on comes back in full, with its slot, and others that wait are looked at again."""
    await claim(bench, "a")
    await bench.admit(await bench.take("gate:interactive"))
    await bench.beat(premium=1)
    assert await bench.send(bench.request("next", tenant="b")) == ["deferred"]
    await bench.drain(*await bench.notices())
    held = await bench.take("premium") if read else []

    await cancelled(bench, "a")

    assert await bench.start(held or await bench.take("premium")) == ["gone"]
    assert (await views.budget(bench))[:2] == (0, 0)
    assert await views.exists(bench, "grants", "reservations") == []
    assert (await views.budget_kept(bench)).get("in_flight", 0) == 0
    assert (await bench.drain(*await bench.notices())).premium == 1


async def test_with_a_call_under_way(bench: Bench) -> None:
    """A call that runs stays charged in full, its worker is told, and when it lets go its place in flight is free."""
    await claim(bench, "a")
    await bench.admit(await bench.take("gate:interactive"))
    (call,) = await bench.take("premium")
    await bench.start([call])
    await bench.redis("HSET", bench.keys.status("a"), "entry", f"ingest {bench.now_ms}-3")
    await bench.advance(3)

    result = await cancelled(bench, "a")

    assert (result.route, result.total_ms, result.waited_ms) == ("premium", 3000, -1)
    assert await told(bench) == [("a", "0")]
    assert 0 < await bench.redis("TTL", bench.keys.key("cancelled")) <= 3600
    assert (await views.budget_kept(bench))["in_flight"] == 1
    assert await bench.finish(call, status="cancelled", pause_s=0) == [0]
    assert (await views.budget(bench))[:2] == (1, 100)
    assert (await views.budget_kept(bench)).get("in_flight", 0) == 0
    assert await views.lengths(bench) == {}


async def test_in_the_queue_of_the_edge(opened: Open) -> None:
    """A request on its way to the edge is answered, its worker is told, and its slot is free when that lets go."""
    bench = await opened(premium=0, edge=1)
    await claim(bench, "a", simple=True, edge=True)
    assert await bench.admit(await bench.take("gate:interactive")) == [("edge", "")]

    await cancelled(bench, "a")

    assert await told(bench) == [("a", "0")]
    assert await bench.finish(*await bench.take("edge")) == [0]
    assert await views.lengths(bench) == {}
