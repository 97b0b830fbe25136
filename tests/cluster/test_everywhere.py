"""The whole of it behaves the same on one server, under Sentinels and in a Cluster: only the URL differs."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from pipeline.store.views import opened
from tests.cluster.kit import Cluster, Server, Watched, running
from tests.integration.rig import Rig, open_rig
from tests.integration.test_feedback import command
from tests.support import eventually
from tokenweir import Client, Limiter, LimitReached, StoreUnavailable, Ticket
from tokenweir.connection import Connection, connect

pytestmark = pytest.mark.anyio

PLACES: dict[str, Callable[[Path], Any]] = {"one server": Server, "Sentinels": Watched, "a Cluster": Cluster}


@pytest.fixture(scope="module")
def rigs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Rig]]:
    """A deployment with one worker process in each place, made when it is first asked for."""
    made: dict[str, Rig] = {}
    with ExitStack() as stack:

        def rig_in(name: str) -> Rig:
            if name not in made:
                place = stack.enter_context(running(PLACES[name](tmp_path_factory.mktemp("place") / "p")))
                made[name] = stack.enter_context(open_rig(place=place, pool="everywhere"))
                made[name].run()
            return made[name]

        yield rig_in


@pytest.fixture(params=PLACES)
def rig(request: pytest.FixtureRequest, rigs: Callable[[str], Rig]) -> Rig:
    return rigs(request.param)


def client_of(rig: Rig, **more: Any) -> Client:
    return Client(rig.store.url, pool=rig.keys.pool, **more)


async def test_a_request_is_submitted_and_answered(rig: Rig) -> None:
    """By plain XADD, by `submit` and `result`, by `ask`; asked for again it is known, and nothing is left behind."""
    raw = rig.ask("added by anybody")
    async with client_of(rig) as client:
        many = await client.submit_many([f"one of many {index}" for index in range(40)])
        results = [await client.result(each) for each in many]
        asked = await client.ask("answer me", wait_s=20, id=f"again-{raw.id}")
        again = await client.ask("answer me", wait_s=20, id=f"again-{raw.id}")
        status = await client.status(raw.id)

    assert {result.status for result in (raw, *results)} == {"ok"}
    assert {asked.id, again.id} == {f"again-{raw.id}"}
    assert rig.calls("answer me") == 1
    assert status is not None
    assert status.result is not None
    assert (status.state, status.result.content) == ("done", raw.content)
    rig.assert_clean()


async def test_an_answer_is_streamed(rig: Rig) -> None:
    """Pieces come as the provider sends them, and make up the whole answer."""
    async with client_of(rig) as client:
        events = [event async for event in client.stream("piece by piece")]

    last = events[-1]
    assert last.result is not None
    assert last.result.content == "".join(event.text for event in events[:-1] if event.attempt == last.result.attempt)
    rig.assert_clean()


async def test_results_are_shared_out_by_a_group(rig: Rig) -> None:
    """`results` reads what all producers get, each result once a group."""
    ids = set(rig.add_many(12))
    found = set()
    async with client_of(rig) as client:
        async for result in client.results(f"group-{min(ids)}"):
            found.add(result.id)
            if ids <= found:
                break

    assert ids <= found


async def test_what_has_no_room_waits_until_a_limit_is_raised(rig: Rig) -> None:
    """Limits set live count at once: what has no room waits with its position, can be cancelled, and goes at last."""
    command(rig, "limits", "set", "primary", "rpm=1")
    try:
        waiting = [rig.add(f"wait {index}", complexity="complex") for index in range(6)]
        async with client_of(rig) as client:
            ticket = await client.ask("and me", wait_s=0, complexity="complex")
            assert isinstance(ticket, Ticket)
            statuses: list[int | None] = []

            async def placed() -> bool:
                status = await client.status(ticket.id)
                statuses.append(status.position if status else None)
                return bool(statuses[-1])

            await eventually(placed, 10)
            unwanted = await client.cancel(ticket.id)
            assert unwanted is not None
    finally:
        command(rig, "limits", "set", "primary", "rpm=5000")
    results = rig.wait_for([*waiting, ticket.id])

    assert [result.status for result in results] == [*["ok"] * 6, "cancelled"]
    rig.assert_clean()


def test_a_failed_call_is_made_again(rig: Rig) -> None:
    """The provider breaks off once: the request waits a little, and its second attempt is answered."""
    rig.order(kind="status:500", match="[broken]", times=1)

    result = rig.ask("[broken] once")

    assert (result.status, result.attempt) == ("ok", 2)
    rig.assert_clean()


async def test_a_dead_letter_is_kept_and_replayed(rig: Rig) -> None:
    """What can't be understood is answered with an error, kept whole, and has a second life when it is replayed."""
    bad = rig.add("x", class_="vip")
    first = rig.wait_for([bad])[0]
    async with opened(rig.store.url, rig.keys) as views:
        letters = [letter async for letter in views.letters.all() if letter.id == bad]

    command(rig, "dead", "replay", letters[0].letter)

    def answered_twice() -> bool:
        rig.read()
        return len(rig.results[bad]) == 2

    await eventually(answered_twice, 10)

    assert [(result.status, result.replay) for result in rig.results[bad]] == [("error", 0), ("error", 1)]
    assert first.code == "invalid_request"


async def test_a_limiter_shares_the_budget(rig: Rig) -> None:
    """Programs that make their own calls draw on one budget, wherever it is kept."""
    limits = {"primary": {"rpm": 24, "window_s": 12}}  # 2 a second, and 2.4 at once
    async with (
        Limiter(rig.store.url, pool="limiter", limits=limits) as limiter,
        Limiter(rig.store.url, pool="limiter") as other,
    ):
        async with limiter.reserve(wait_s=10):  # the budget begins empty
            began_s = time.monotonic()
        granted = await _all_there_is(limiter) + await _all_there_is(other)
        lasted_s = time.monotonic() - began_s

    assert granted <= 2.4 + 2 * lasted_s


async def _all_there_is(limiter: Limiter) -> int:
    for count in itertools.count():
        try:
            async with limiter.reserve(wait_s=0):
                pass
        except LimitReached:
            return count
    raise AssertionError


async def test_c60_connections_are_few_and_a_full_server_is_an_outage(rigs: Callable[[str], Rig]) -> None:
    """A worker opens 10 and a client 5, whatever they have to do; who finds no place comes in once there is one."""
    rig = rigs("one server")

    def connected() -> int:
        return len(rig.redis.client_list())

    rig.wait_for(rig.add_many(300))
    alone = connected()
    async with client_of(rig) as client:
        await asyncio.gather(*(client.ask(f"many at once {index}", wait_s=20) for index in range(200)))
        together = connected()
    await eventually(lambda: connected() == alone)
    rig.redis.config_set("maxclients", alone)
    try:
        async with client_of(rig) as late:
            with pytest.raises(StoreUnavailable, match="max number of clients"):
                await late.submit("no place", id="c60")
            rig.redis.config_set("maxclients", 1000)
            result = await late.ask("no place", id="c60", wait_s=20)
    finally:
        rig.redis.config_set("maxclients", 1000)

    assert alone <= 10 + 1  # and the test's own
    assert together - alone <= 5
    assert not isinstance(result, Ticket)
    assert "MaxConnectionsError" not in rig.runs[0].text
    rig.assert_clean()


async def test_pools_of_a_cluster_live_on_different_nodes(rigs: Callable[[str], Rig]) -> None:
    """One pool is one slot; pools spread, and one client of each finds its own node."""
    rig = rigs("a Cluster")
    cluster: Cluster = rig.store
    pools = [cluster.pool_on(number, "spread") for number in range(3)]
    found = []
    for pool in pools:
        async with Client(cluster.url, pool=pool) as client:
            id_ = await client.submit("over there")
            status = await client.status(id_)
        connection = Connection(connect(cluster.url), client._keys)
        assert await connection.command("XLEN", connection.keys.key("ingest")) == 1
        found.append((status.state if status else "", str(connection.links.place)))
        await connection.aclose()

    owners = [cluster.owner(f"{{{pool}}}").address for pool in pools]
    assert found == [("submitted", owner) for owner in owners]
    assert len(set(owners)) == 3
