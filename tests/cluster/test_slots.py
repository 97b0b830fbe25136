"""In a Cluster: all keys of a pool in one slot, and what happens while that slot moves or its node dies."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import TypeVar

import msgspec
import pytest
from redis.crc import key_slot

from lua import load as load_script
from pipeline.config import Deployment, Pool
from pipeline.message import Request
from pipeline.outcome import Dead, Done, Failure, Forward, Retry, Used
from pipeline.store import Entry, Store
from tests.cluster.kit import Cluster, running
from tests.cluster.load import lives
from tests.script.test_declared_keys import SCRIPTS
from tests.support import eventually
from tokenweir import Client, StoreUnavailable
from tokenweir.connection import Connection, connect
from tokenweir.keys import GROUPS, Keys
from tokenweir.wire import Result

pytestmark = pytest.mark.anyio

T = TypeVar("T")

_POOL = Pool(deployments=(Deployment(name="primary", api_key="none", rpm=100_000, tpm=100_000_000, window_s=1),))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running(Cluster(tmp_path_factory.mktemp("place") / "p")) as place:
        yield place


@pytest.mark.parametrize("name", SCRIPTS)
async def test_c26_all_keys_of_a_script_are_declared_in_one_slot(cluster: Cluster, keys: Keys, name: str) -> None:
    """Redis itself finds every key in the command, and all of them in the pool's slot: any script can be routed."""
    script = load_script(name)
    connection = Connection(connect(cluster.url), keys)
    bind = {key: keys.status("a") for key in script.keys if key.startswith("<")}
    names = [*connection.names(script, bind=bind, rest=["budget:a"] if script.rest else []), keys.status("b")]
    await connection.aclose()
    ask = cluster.servers[0].command

    found = ask("COMMAND", "GETKEYS", "EVALSHA", script.sha, len(names), *names, "argument")

    assert found == names
    assert {ask("CLUSTER", "KEYSLOT", key) for key in found} == {key_slot(keys.root.encode())}


# One request, step by step, while its status is on its way to another node


class Move:
    """The pool's slot on its way from one primary to another."""

    def __init__(self, cluster: Cluster, keys: Keys) -> None:
        self.cluster, self._slot = cluster, key_slot(keys.root.encode())
        self.source = cluster.owner(keys.root)
        self._target = next(server for server in cluster.servers if server.primary and server is not self.source)
        cluster.begin_move(self._slot, self.source, self._target)

    def take(self, key: str) -> None:
        """Move one key."""
        assert self.source.command("MIGRATE", "127.0.0.1", self._target.port, key, 0, 5000) == "OK"

    def everything(self) -> dict[str, bytes]:
        """All that is left at the source."""
        names = self.source.command("CLUSTER", "GETKEYSINSLOT", self._slot, 1000)
        return {name: self.source.client.dump(name) or b"" for name in names}

    def end(self) -> None:
        """Move the rest."""
        self.cluster.move_keys(self._slot, self.source, self._target)
        self.cluster.end_move(self._slot, self._target)


@pytest.fixture
async def store(cluster: Cluster, keys: Keys) -> AsyncIterator[Store]:
    opened = Store(cluster.url, keys, _POOL)
    await opened.gate.seed()
    await opened.gate.beat(premium_slots=10, edge_slots=0, ttl_ms=600_000)
    await opened.streams.make_groups(list(GROUPS))
    yield opened
    await opened.aclose()


def _result(id_: str) -> Result:
    return Result(id=id_, status="ok", content="once")


async def test_c65_a_status_on_its_way_is_never_taken_for_none(cluster: Cluster, keys: Keys, store: Store) -> None:
    """A late finisher whose request's status has gone ahead can't write a second result, nor can any other ending.

    Not even where Redis wasn't told of the status and finds the script reaching for it: that ends the script before
    it has written anything.
    """
    reader = store.reader()
    for number in range(5):
        await reader.command("XADD", keys.key("ingest"), "*", "id", f"r{number}", "prompt", "x")
    entries = await store.streams.read(reader, ["ingest"], count=10)
    done = [(entry.id, Done(result=_result(f"r{number}"))) for number, entry in enumerate(entries)]
    dead = [(entry, Dead(reason="x", message="x"), _result(f"r{number}")) for number, entry in enumerate(entries)]
    assert (await store.streams.finish("ingest", done[:1]))[0].first
    assert await store.streams.bury("ingest", dead[1:2], at_ms=1) == [True]
    # No key that the scripts declare is missing: it is the status alone that makes them fail.
    indexes = [f"backlog:{name}" for name in ("interactive", "standard", "batch", "simple", "due", "deadlines")]
    for name in ("backlog:meta", "backlog:bodies", "tenants", "grants"):
        await reader.command("HSET", keys.key(name), "x", "y")
    for name in (*indexes, "reservations"):
        await reader.command("ZADD", keys.key(name), 1, "x")
    late = [(done[2][0], done[0][1])]
    late_dead = [(dead[3][0], dead[0][1], dead[0][2])]
    attempts: list[Callable[[], Awaitable[object]]] = [
        lambda: store.streams.finish("ingest", late),
        lambda: store.streams.bury("ingest", late_dead, at_ms=1),
    ]
    move = Move(cluster, keys)
    move.take(keys.status("r0"))
    before = move.everything()

    for told, said in ((True, "TRYAGAIN|TryAgain"), (False, "non local key")):
        store.control.links.clustered = told
        for attempt in attempts:
            with pytest.raises(StoreUnavailable, match=said):
                await attempt()
            assert move.everything() == before
    store.control.links.clustered = True
    move.end()

    assert [ended.first for ended in await store.streams.finish("ingest", late)] == [False]
    assert await store.streams.bury("ingest", late_dead, at_ms=1) == [True]
    assert lives(cluster.client, keys) == {("r0", 0): 1, ("r1", 0): 1}


async def test_c65_every_step_waits_for_the_slot_or_is_made_whole(cluster: Cluster, keys: Keys, store: Store) -> None:
    """The slot moves at each step of a request: the step fails and changes nothing, and succeeds once it has moved."""
    reader, gate, streams = store.reader(), store.gate, store.streams
    async with Client(cluster.url, pool=keys.pool) as client:
        await client.submit("on the move", id="a")
        await _moving(cluster, keys, lambda: client.submit("on the move", id="b"))

    async def take(lane: str) -> Entry:
        return (await streams.read(reader, [lane], count=1))[0]

    async def drained() -> Entry:
        notices = [entry.id for entry in await streams.read(reader, ["deferred"], count=10)]
        await _moving(cluster, keys, lambda: gate.drain(notices, most=10))

        async def granted() -> bool:
            return bool((await gate.drain([], most=10)).premium or await reader.command("XLEN", keys.key("premium")))

        await eventually(granted)  # for a second nothing is granted where another server wrote the budget
        return await take("premium")

    entry = await take("ingest")
    request = Request(id="a", body=msgspec.Raw(b"{}"), prompt_tokens=5, output_tokens=5, entered_ms=1)
    forward = [(entry.id, Forward(request=request, to="gate:interactive", claims=True))]
    assert await _moving(cluster, keys, lambda: streams.forward("ingest", forward)) == [b"moved"]
    entry = await take("gate:interactive")
    verdicts = await _moving(cluster, keys, lambda: gate.admit([(entry.id, request)]))
    assert [verdict.decision for verdict in verdicts] == ["premium"]
    entry = await take("premium")
    started = await _moving(cluster, keys, lambda: gate.start([(entry.id, request)]))
    assert started[0][0] == "started"
    again = msgspec.structs.replace(request, attempt=2)
    failed = [(entry.id, "primary", Retry(request=again, failure=Failure("provider_503")))]
    assert await _moving(cluster, keys, lambda: streams.retry("premium", failed)) == 1
    entry = await drained()
    await gate.start([(entry.id, again)])
    assert await _moving(cluster, keys, lambda: gate.give_back([(entry.id, again)])) == 1
    entry = await drained()
    await gate.start([(entry.id, again)])
    done = [(entry.id, Done(result=msgspec.structs.replace(_result("a"), attempt=2), used=Used(5, 5)))]
    assert [ended.first for ended in await _moving(cluster, keys, lambda: streams.finish("premium", done))] == [True]

    assert lives(cluster.client, keys) == {("a", 0): 1}
    left = {name: cluster.client.exists(keys.key(name)) for name in ("grants", "reservations", "backlog:meta")}
    assert left == dict.fromkeys(left, 0)
    assert [cluster.client.xlen(keys.key(lane)) for lane in ("gate:interactive", "premium", "ingest")] == [0, 0, 1]


async def _moving(cluster: Cluster, keys: Keys, step: Callable[[], Awaitable[T]]) -> T:
    """`step`, tried while the pool's slot moves: that must fail and change nothing; then made where it has moved to."""
    move = Move(cluster, keys)
    move.take(keys.status("a"))
    before = move.everything()
    with pytest.raises(StoreUnavailable):
        await step()
    assert move.everything() == before
    move.end()
    return await step()


async def test_c65_a_blocked_read_follows_its_stream(cluster: Cluster, keys: Keys, store: Store) -> None:
    """A reader that waits while its stream moves is back within its block time, at the new node, and misses nothing."""
    reader, streams = store.reader(), store.streams
    await streams.read(reader, ["ingest"], count=1)
    before, opened = reader.links.place, reader.links.opened
    move = Move(cluster, keys)
    waiting = asyncio.create_task(streams.read(reader, ["ingest"], count=1, block_ms=2000))
    await eventually(lambda: "blocked_clients:1" in move.source.command("INFO", "clients"))
    move.end()
    await store.control.command("XADD", keys.key("ingest"), "*", "id", "late", "prompt", "x")
    began_s = time.monotonic()

    try:
        found = await waiting
    except StoreUnavailable:  # that is how a server tells that the stream has gone
        found = []
    found += await streams.read(reader, ["ingest"], count=1)

    assert time.monotonic() - began_s < 2
    assert [entry.fields[b"id"] for entry in found] == [b"late"]
    assert reader.links.place == store.control.links.place != before
    assert reader.links.opened > opened  # so the loop asks anew by which number it can be woken


async def test_one_node_named_as_one_server_says_how_to_name_it(cluster: Cluster, keys: Keys) -> None:
    """A Cluster's node behind `redis://` isn't used by halves: the error has the cure."""
    others = next(server for server in cluster.servers if server is not cluster.owner(keys.root))
    connection = Connection(connect(others.url), keys)

    with pytest.raises(StoreUnavailable, match=r"a node of a Cluster.*redis\+cluster://host:port"):
        await connection.command("XLEN", keys.key("ingest"))

    await connection.aclose()


async def test_nodes_that_are_gone_or_no_nodes_are_passed_over(cluster: Cluster, keys: Keys) -> None:
    """Any node that answers is enough, at the start and later; all calls at once may be the first."""
    dead = "127.0.0.1:1"
    connection = Connection(connect(f"redis+cluster://{dead},{cluster.servers[0].address}"), keys)

    lengths = await asyncio.gather(*(connection.command("XLEN", keys.key("ingest")) for _ in range(20)))

    assert set(lengths) == {0}
    assert str(connection.links.place) == cluster.owner(keys.root).address
    await connection.aclose()
