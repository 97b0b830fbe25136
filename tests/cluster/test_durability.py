"""What `durability` promises: a submit that returned is on a replica, or on the disk, whatever dies next."""

from __future__ import annotations

import asyncio
import itertools
import re
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.cluster.kit import Watched, ask, running
from tests.support import eventually, running_server, server_kinds
from tokenweir import Client, ConfigError, StoreUnavailable
from tokenweir.connection import Call, Connection, connect
from tokenweir.draft import Draft
from tokenweir.durability import Durability
from tokenweir.keys import Keys
from tokenweir.submission import _SUBMIT

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    with running(Watched(tmp_path_factory.mktemp("place") / "p")) as place:
        yield place


def _submission(keys: Keys) -> Call:
    """One request, as the client submits it."""
    draft = Draft("once", id="once")
    return Call({"<status>": keys.status(draft.id), "<lane>": keys.key(draft.lane)}, [1000, "", *draft.fields()])


@pytest.fixture
async def connections(watched: Watched, keys: Keys) -> AsyncIterator[list[Connection]]:
    made = [Connection(connect(watched.url, max_connections=1), keys) for _ in range(2)]
    yield made
    for connection in made:
        await connection.aclose()


async def test_a_replica_that_lags_makes_submit_fail_until_it_has_it(watched: Watched, keys: Keys) -> None:
    """No replica has the request: the error says that a repeat is safe, and the repeat succeeds once one has."""
    async with Client(watched.url, pool=keys.pool, durability="replica") as client:
        await client.submit("while all is well", id="first")
        replica = watched.replica
        replica.hold()
        try:
            with pytest.raises(StoreUnavailable, match="no replica had it within 1 s; repeat the call"):
                await client.submit("held back", id="second")
            async with Client(watched.url, pool=keys.pool) as hasty:
                await hasty.submit("not waited for", id="third")
        finally:
            replica.go_on()
        await client.submit("held back", id="second")
        held = await client.submit_many([Draft("many", id=f"many{index}") for index in range(600)])

    assert len(held) == 600
    assert watched.client.xlen(keys.key("ingest")) == 603


async def test_a_repeat_waits_for_what_came_before_it(
    watched: Watched, keys: Keys, connections: list[Connection]
) -> None:
    """Asked again over a connection that never wrote, a known request isn't called safe while no replica has it."""
    call = _submission(keys)
    replica = watched.replica
    replica.hold()
    try:
        first, reached = await connections[0].run_many(_SUBMIT, [call], behind=("WAIT", 1, 50))
        again, reached_again = await connections[1].run_many(_SUBMIT, [call], behind=("WAIT", 1, 50))
    finally:
        replica.go_on()
    third, reached_at_last = await connections[1].run_many(_SUBMIT, [call], behind=("WAIT", 1, 5000))

    assert (first[0], reached) == (b"added", 0)
    assert (again[0], reached_again) == (b"known", 0)
    assert (third[0], reached_at_last) == (b"known", 1)


async def test_an_emptied_script_cache_doesnt_shorten_the_wait(
    watched: Watched, keys: Keys, connections: list[Connection]
) -> None:
    """The script had to be sent anew: what is waited for is its second run, not the first, which wrote nothing."""
    call = _submission(keys)
    replica = watched.replica
    watched.primary.command("SCRIPT", "FLUSH")
    replica.hold()
    try:
        answer, reached = await connections[0].run_many(_SUBMIT, [call], behind=("WAIT", 1, 50))
    finally:
        replica.go_on()

    assert (answer[0], reached) == (b"added", 0)


@pytest.mark.parametrize("kind", server_kinds())
async def test_fsync_is_on_the_disk_or_refused(kind: str, tmp_path: Path) -> None:
    """With an append-only file it waits for the disk; without one, or where Redis can't, nothing is queued."""
    with running_server(kind) as server:
        async with Client(server.tcp_url, durability="fsync") as client:
            knows = bool(ask(server.port, "COMMAND", "INFO", "WAITAOF")[0])
            said = "append-only file, which is off" if knows else "WAITAOF, which Redis has from 7.2 on"
            with pytest.raises(ConfigError, match=said):
                await client.submit("nothing of it", id="one")
            assert ask(server.port, "DBSIZE") == 0
            if knows:
                ask(server.port, "CONFIG", "SET", "appendfsync", "always")
                ask(server.port, "CONFIG", "SET", "appendonly", "yes")
                await client.submit("now it works", id="two")
                assert b"now it works" in b"".join(
                    file.read_bytes() for file in Path(ask(server.port, "CONFIG", "GET", "dir")[1]).rglob("*.aof")
                )


async def test_an_unknown_durability_is_named() -> None:
    """A mistyped word is an error at once, with those that there are."""
    with pytest.raises(ConfigError, match="durability 'disk' is none of aof, replica, fsync"):
        Client("redis://nowhere", durability="disk")  # type: ignore[arg-type]


async def test_submit_waits_on_the_command_line(watched: Watched, keys: Keys) -> None:
    """`tokenweir submit --durability replica` ends with 3 while no replica has it, and with 0 once one has."""
    words = (*(sys.executable, "-m", "pipeline.cli", "submit", "x", "--id", "one"), "--redis", watched.url)

    async def run() -> tuple[int | None, str]:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*words, "--durability", "replica", stdout=pipe, stderr=pipe)
        _, said = await process.communicate()
        return process.returncode, said.decode()

    replica = watched.replica
    replica.hold()
    try:
        failed = await run()
    finally:
        replica.go_on()
    succeeded = await run()

    assert failed[0] == 3
    assert re.fullmatch(r"tokenweir: .*no replica had it.*\n", failed[1])
    assert succeeded == (0, "")


async def test_c57_nothing_that_was_taken_in_by_a_replica_is_lost(tmp_path: Path) -> None:
    """The primary is killed while its replica lags: all that `replica` acknowledged is there, under the new primary."""
    with running(Watched(tmp_path / "p")) as watched:
        pools: dict[Durability, Keys] = {"replica": Keys("safe"), "aof": Keys("hasty")}
        taken: dict[Durability, list[str]] = {"replica": [], "aof": []}
        stop = asyncio.Event()

        async def produce(durability: Durability, keys: Keys) -> None:
            async with Client(watched.url, pool=keys.pool, durability=durability) as client:
                for number in itertools.count():
                    if stop.is_set():
                        return
                    try:
                        taken[durability].append(await client.submit("x", id=f"r{number}"))
                    except StoreUnavailable:
                        await asyncio.sleep(0.05)  # not acknowledged; its number isn't used again

        async with asyncio.TaskGroup() as group:
            for durability, keys in pools.items():
                group.create_task(produce(durability, keys))
            await eventually(lambda: min(map(len, taken.values())) > 50)
            before = len(taken["aof"])
            old, new = watched.primary, watched.cut_off()
            await eventually(lambda: len(taken["aof"]) > before + 100)
            old.kill()
            new.go_on()
            await eventually(lambda: new.primary, 15)
            counts = {durability: len(ids) for durability, ids in taken.items()}
            await eventually(lambda: len(taken["aof"]) > counts["aof"] + 20)
            stop.set()

        lost = {
            durability: sum(not new.client.exists(pools[durability].status(id_)) for id_ in ids)
            for durability, ids in taken.items()
        }
        print(f"acknowledged { ({name: len(ids) for name, ids in taken.items()}) }, of which lost: {lost}")
        assert lost["replica"] == 0
