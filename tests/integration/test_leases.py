"""Who holds an entry, for how long, and who gets it next: loops of real workers on a real server."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from pipeline.newer import PATIENCE_LEASES
from pipeline.outcome import Outcome
from pipeline.stage import Delivery
from tests.integration import loops
from tests.integration.loops import Steered, abandon, add, answer, claim, consumers, held, results, running, take
from tests.support import eventually, running_server, server_kinds
from tokenweir.connection import Connection, connect
from tokenweir.keys import Keys

pytestmark = [pytest.mark.anyio, pytest.mark.leaves_keys("streams of work, which live for ever")]

LEASE_S = 0.2


class Gated:
    """A handler that holds some requests until the test lets them go."""

    def __init__(self, *ids: str) -> None:
        self.ids, self.open = ids, asyncio.Event()

    async def __call__(self, delivery: Delivery) -> Outcome:
        if delivery.request.id in self.ids:
            await self.open.wait()
        return await answer(delivery)


async def test_a_handler_that_hangs_holds_its_entry_and_its_place_only_for_a_while(
    redis_url: str, keys: Keys, connection: Connection
) -> None:
    """A lease beyond the stage's own time-out it is given up: tried anew, in the end dead, and others are served."""
    stage = Steered(Gated("hang"), concurrency=1, longest_s=0.0)
    await add(connection, "hang", "fine")

    async with running(redis_url, keys, stage, lease_s=LEASE_S):
        await eventually(lambda: _has(connection, "hang", "fine"), 10)

    assert await results(connection) == {"hang": "dead_letter", "fine": "internal"}
    assert stage.handled.count("hang") == 3  # max_deliveries
    assert await connection.command("XLEN", keys.key("dead")) == 1


async def test_a_slow_handler_within_its_time_out_keeps_its_entry(
    redis_url: str, keys: Keys, connection: Connection
) -> None:
    """What takes ten leases, and may, is handled once, even with another worker about."""
    gate = Gated("slow")
    slow, other = Steered(gate), Steered()
    (entry,) = await add(connection, "slow")
    async with running(redis_url, keys, slow, lease_s=LEASE_S) as first:
        await eventually(lambda: slow.handled)
        async with running(redis_url, keys, other, lease_s=LEASE_S):
            await _pass(10 * LEASE_S)
            kept = await held(connection)
            gate.open.set()
            await eventually(lambda: _has(connection, "slow"))

    assert (slow.handled, other.handled, kept) == (["slow"], [], {entry: (first.consumer, 1)})


async def test_a_handler_that_somebody_else_cancelled_is_tried_again(
    redis_url: str, keys: Keys, connection: Connection
) -> None:
    """A cancellation that came out of a library leaves no entry in the hands of nobody."""
    cancelled = 0

    async def once(delivery: Delivery) -> Outcome:
        nonlocal cancelled
        cancelled += 1
        if cancelled == 1:
            raise asyncio.CancelledError
        return await answer(delivery)

    await add(connection, "a")

    async with running(redis_url, keys, Steered(once, concurrency=1), lease_s=LEASE_S):
        await eventually(lambda: _has(connection, "a"), 10)

    assert (await results(connection), cancelled) == ({"a": "internal"}, 2)


async def test_the_tail_behind_many_live_entries_is_reached(redis_url: str, keys: Keys, connection: Connection) -> None:
    """What a dead worker left stands behind more live entries than one look sees: it is found all the same."""
    live = await add(connection, *(f"live{i}" for i in range(200)))
    await take(connection, "live", count=200)
    await abandon(connection, "tail")

    async def renew() -> None:
        while True:
            await claim(connection, "live", live)
            await asyncio.sleep(LEASE_S / 4)

    renewing = asyncio.create_task(renew())
    # A look that always began at the head would see no further than this.
    looked = await connection.redis.xautoclaim(keys.key("edge"), "edge", "x", 10_000, "0-0", count=4, justid=True)
    async with running(redis_url, keys, Steered(concurrency=4), lease_s=LEASE_S * 5):
        await eventually(lambda: _has(connection, "tail"), 10)
    renewing.cancel()

    assert looked == []
    assert set(await results(connection)) == {"tail"}


async def test_what_waits_its_turn_in_hand_is_renewed_too(redis_url: str, keys: Keys, connection: Connection) -> None:
    """Entries that wait behind a suspect are kept by heartbeats for many leases, and cost them no delivery."""
    gate = Gated("first")
    entries = await abandon(connection, "first", "second", "third")
    busy, other = Steered(gate), Steered()

    async with running(redis_url, keys, busy, lease_s=LEASE_S) as owner:
        await eventually(lambda: busy.handled, 10)
        async with running(redis_url, keys, other, lease_s=LEASE_S):
            await add(connection, *(f"tick{i}" for i in range(10)))
            await eventually(lambda: len(other.handled) == 10)
            await _pass(5 * LEASE_S)
            kept = await held(connection)
            gate.open.set()
            await eventually(lambda: _has(connection, "first", "second", "third"), 10)

    assert kept == {entry: (owner.consumer, 2 if entry == entries[0] else 1) for entry in entries}
    assert busy.handled == ["first", "second", "third"]


async def test_a_stop_takes_back_only_deliveries_that_were_counted(
    redis_url: str, keys: Keys, connection: Connection
) -> None:
    """A suspect that was handed back stays one, however often its workers are told to stop."""
    entries = await abandon(connection, "first", "second", deliveries=2)
    stage = Steered(Gated("first"))
    async with running(redis_url, keys, stage, lease_s=LEASE_S, drain_s=0.05) as loop:
        await eventually(lambda: stage.handled, 10)
        assert [count for _, count in (await held(connection)).values()] == [3, 2]

        await loop.stop()

    assert {entry: count for entry, (_, count) in (await held(connection)).items()} == dict.fromkeys(entries, 2)


async def test_c67_a_version_that_nobody_comes_for_is_answered_in_the_end(
    redis_url: str, keys: Keys, connection: Connection
) -> None:
    """After a roll-back nobody may know the version any more: the caller gets a typed error, `dead` the whole entry.

    Until then a worker looks at it a few times a lease, and no more often.
    """
    raw = b'{"id":"orphan","body":{},"v":7,"hint":1}'
    await connection.command("XADD", keys.key("edge"), "*", "request", raw)
    stage, before, began = Steered(), await _claims(connection), time.monotonic()

    async with running(redis_url, keys, stage, lease_s=0.05) as loop:
        await eventually(lambda: _held_by(connection, loop.consumer, deliveries=0), 5)
        await add(connection, "fine")
        await eventually(lambda: _has(connection, "orphan", "fine"), PATIENCE_LEASES * 0.05 + 5)

    assert await _claims(connection) - before <= 3 * ((time.monotonic() - began) / (0.6 * 0.05 / 4)) + 10
    assert (await results(connection), stage.handled) == ({"orphan": "dead_letter", "fine": "internal"}, ["fine"])
    ((_, letter),) = await connection.command("XRANGE", keys.key("dead"), "-", "+")
    assert (letter[b"reason"], letter[b"field:request"]) == (b"newer_version", raw)


@pytest.mark.parametrize("kind", server_kinds())
async def test_c08_a_live_worker_that_was_cleared_away_reads_on(kind: str) -> None:
    """Removing the consumer of an idle worker while it waits for work loses nothing: what comes next is handled."""
    with running_server(kind) as server:
        keys = Keys("main")
        connection = Connection(connect(server.url), keys)
        stage = Steered()
        async with running(server.url, keys, stage) as loop:
            for turn in range(3):
                await eventually(lambda: _reads(connection))
                await connection.command("XGROUP", "DELCONSUMER", keys.key("edge"), "edge", loop.consumer)
                await add(connection, f"r{turn}")
                await eventually(lambda turn=turn: _has(connection, f"r{turn}"))
        await connection.aclose()

    assert stage.handled == ["r0", "r1", "r2"]


async def test_c08_consumers_of_the_dead_go_within_leases(redis_url: str, keys: Keys, connection: Connection) -> None:
    """Names of workers that ended hold nothing any more and are cleared away; what they held is answered."""
    await add(connection, *(f"r{i}" for i in range(40)))
    for i in range(40):
        await take(connection, f"dead{i}", count=1)
    assert len(await consumers(connection)) == 40

    async with running(redis_url, keys, Steered(), lease_s=LEASE_S) as loop:
        await eventually(lambda: _has(connection, *(f"r{i}" for i in range(40))), 20)
        await eventually(lambda: _only(connection, loop.consumer), 20)

    assert await connection.command("XLEN", keys.key("dead")) == 0


async def _pass(seconds: float) -> None:
    """Return when that much time has passed."""
    until = time.monotonic() + seconds
    await eventually(lambda: time.monotonic() >= until, seconds + 1)


async def _has(connection: Connection, *ids: str) -> bool:
    return set(ids) <= set(await loops.results(connection))


async def _only(connection: Connection, consumer: str) -> bool:
    return list(await consumers(connection)) == [consumer]


async def _reads(connection: Connection) -> bool:
    """Whether somebody's blocked read is under way."""
    return any(client["cmd"] == "xreadgroup" and "b" in client["flags"] for client in await _clients(connection))


async def _clients(connection: Connection) -> list[dict[str, str]]:
    found: Any = await connection.redis.client_list()
    return list(found)


async def _claims(connection: Connection) -> int:
    """How often entries were claimed on this server so far."""
    about: Any = await connection.redis.info("commandstats")
    return sum(int(about.get(f"cmdstat_{name}", {"calls": 0})["calls"]) for name in ("xclaim", "xautoclaim"))


async def _held_by(connection: Connection, consumer: str, *, deliveries: int) -> bool:
    """Whether one entry is held under that name with so many deliveries."""
    return list((await held(connection)).values()) == [(consumer, deliveries)]
