"""Leases on a real server: who owns an entry, who takes it over, and who gives it back."""

from __future__ import annotations

import pytest

from tests.script import views
from tests.script.bench import Bench

pytestmark = pytest.mark.anyio


async def test_an_abandoned_entry_is_taken_over_and_its_body_comes_with_it(bench: Bench) -> None:
    """What a dead worker held goes to the next one that looks; what was deleted meanwhile is cleared away."""
    held = await bench.arrive(bench.request("a"), bench.request("b"), consumer="dead")
    await bench.redis("XDEL", bench.keys.key("gate:interactive"), held[1].entry)

    args = ("gate", "w2", 0, "0-0", 10)
    cursor, taken, lost = await bench.run("entries_reclaim", args, lane="gate:interactive")

    assert cursor == b"0-0"
    ((entry, deliveries, flat),) = taken
    assert (entry.decode(), deliveries, flat[0]) == (held[0].entry, 2, b"request")
    assert [gone.decode() for gone in lost] == [held[1].entry]
    assert await views.pending(bench, "gate:interactive") == 1


async def test_a_live_lease_is_left_alone(bench: Bench) -> None:
    """Nobody takes over what was heard of within the lease."""
    await bench.arrive(bench.request("a"))

    _, taken, _ = await bench.run("entries_reclaim", ("gate", "w2", 30_000, "0-0", 10), lane="gate:interactive")

    assert taken == []


async def test_renewing_keeps_what_is_ours_and_tells_what_isnt(bench: Bench) -> None:
    """A renewal takes nothing back from the worker that has it now, and counts no delivery."""
    mine, other = await bench.arrive(bench.request("a"), bench.request("b"))
    lane = bench.keys.key("gate:interactive")
    await bench.connection.redis.xclaim(lane, "gate", "w2", 0, [other.entry], justid=True)

    reply = await bench.run("leases_renew", ("gate", "w1", mine.entry, other.entry, "1-1"), lane="gate:interactive")

    assert [entry.decode() for entry in reply] == [other.entry, "1-1"]
    found = await bench.connection.redis.xpending_range(lane, "gate", min="-", max="+", count=10)
    assert [(entry["consumer"], entry["times_delivered"]) for entry in found] == [(b"w1", 1), (b"w2", 1)]


async def test_what_is_handed_back_is_free_at_once_and_uses_up_no_delivery(bench: Bench) -> None:
    """A stopping worker's entries go to another one at once, as if they had not been read."""
    (held,) = await bench.arrive(bench.request("a"))
    args = ("gate", "w1", 31_000, "w1", 1, held.entry)

    assert await bench.run("entries_release", args, lane="gate:interactive") == [held.entry.encode()]
    args = ("gate", "w1", 31_000, "somebody", 1, held.entry)
    assert await bench.run("entries_release", args, lane="gate:interactive") == []

    _, taken, _ = await bench.run("entries_reclaim", ("gate", "w2", 30_000, "0-0", 10), lane="gate:interactive")
    assert [(entry.decode(), deliveries) for entry, deliveries, _ in taken] == [(held.entry, 1)]


async def test_only_consumers_that_hold_nothing_are_removed(bench: Bench) -> None:
    """Clearing away old consumers never drops what one of them holds."""
    await bench.arrive(bench.request("a"), consumer="busy")
    await bench.take("gate:interactive", consumer="idle")

    lane = "gate:interactive"
    assert await bench.run("consumers_prune", ("gate", "busy", 3_600_000), lane=lane) == 0
    await bench.run("consumers_prune", ("gate", "idle", 3_600_000), lane=lane)

    found = await bench.redis("XINFO", "CONSUMERS", bench.keys.key(lane), "gate")
    assert [consumer[b"name"] for consumer in found] == [b"busy"]


async def test_looking_for_what_a_lost_reply_left_behind_counts_no_delivery(bench: Bench) -> None:
    """After each broken connection a worker looks for entries of its own: that isn't a further delivery of them."""
    held = await bench.arrive(bench.request("a"), bench.request("b"))
    await bench.arrive(bench.request("c"), consumer="w2")

    for _ in range(4):
        own = await bench.run("entries_own", ("gate", "w1", 10), lane="gate:interactive")

    assert [entry.decode() for entry, _ in own] == [one.entry for one in held]
    assert [flat[0] for _, flat in own] == [b"request", b"request"]
    lane = bench.keys.key("gate:interactive")
    found = await bench.connection.redis.xpending_range(lane, "gate", min="-", max="+", count=10)
    assert [entry["times_delivered"] for entry in found] == [1, 1, 1]


async def test_a_delivery_is_counted_once_however_often_it_is_told(bench: Bench) -> None:
    """The reply to the count got lost, and it is told again: still one delivery more."""
    (held,) = await bench.arrive(bench.request("a"))
    lane = bench.keys.key("gate:interactive")

    for _ in range(3):
        assert await bench.run("entries_count", ("gate", "w1", held.entry, 2), lane="gate:interactive") == 1
    assert await bench.run("entries_count", ("gate", "w2", held.entry, 3), lane="gate:interactive") == 0

    (found,) = await bench.connection.redis.xpending_range(lane, "gate", min="-", max="+", count=10)
    assert (found["consumer"], found["times_delivered"]) == (b"w1", 2)
