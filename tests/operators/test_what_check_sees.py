"""What `check` finds at real servers: memory, disk, replicas, and what a write can be known to be in."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError, ResponseError
from redis.retry import Retry

from pipeline.store import server as about_server
from pipeline.store.finding import Finding
from pipeline.store.health import examine
from tests.operators.guarded import GuardedStore
from tests.support import eventually, free_port, server_binary, server_kinds
from tokenweir.connection import Connection, connect
from tokenweir.keys import Keys

pytestmark = pytest.mark.anyio


class Pair(NamedTuple):
    """A primary and its replica, both started with the files as they are handed out."""

    primary: GuardedStore
    replica: GuardedStore
    folder: Path


@pytest.fixture(scope="module", params=server_kinds())
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """A replica that follows as the user `replica`, as redis.conf says."""
    with ExitStack() as stack:
        folders = [tmp_path_factory.mktemp(name) for name in ("primary", "replica")]
        primary, replica = (GuardedStore(folder, request.param) for folder in folders)
        for store in (primary, replica):
            stack.callback(store.client.close)
            stack.callback(store.stop)
            store.start()
        primary.client.config_set("repl-diskless-sync-delay", 0)
        replica.client.config_set("masteruser", "replica")
        replica.client.config_set("masterauth", "replica-pw")
        replica.client.replicaof("127.0.0.1", str(primary.port))
        yield Pair(primary, replica, folders[0])


@pytest.fixture(autouse=True)
async def _in_step(pair: Pair) -> None:
    """Each test begins with a replica that follows."""
    await eventually(lambda: _role(pair.replica.client)["master_link_status"] == "up", 20)
    await eventually(lambda: _role(pair.primary.client).get("slave0", {}).get("state") == "online", 20)


def _role(client: Redis) -> dict[str, Any]:
    found: dict[str, Any] = client.info("replication")
    return found


@pytest.fixture
async def look(pair: Pair) -> AsyncIterator[object]:
    """Everything that is found by a user."""
    async with AsyncExitStack() as stack:

        async def at(url: str) -> dict[str, Finding]:
            connection = Connection(connect(url), Keys("main"))
            stack.push_async_callback(connection.aclose)
            found: dict[str, Finding] = {}
            for finding in await examine(connection):  # the worst of those of one kind
                former = found.get(finding.about)
                if former is None or (former.mark == "ok" and finding.mark != "ok"):
                    found[finding.about] = finding
            return found

        yield at


async def test_a_server_with_the_recommended_settings_passes(pair: Pair, look) -> None:  # type: ignore[no-untyped-def]
    """Eviction, memory, the append-only file and a replica are well; what a write can be known to be in is said."""
    found = await look(pair.primary.url_of("admin"))

    fine = ("eviction", "memory", "persistence", "rights", "clock", "durability")
    assert {name: found[name].mark for name in fine} == dict.fromkeys(fine, "ok")
    assert "fsync everysec" in found["persistence"].text
    assert "up to 1 replica (WAIT 1)" in found["durability"].text
    assert ("WAITAOF 1 0" in found["durability"].text) is _knows_waitaof(pair.primary.client)
    # One replica is there, and nothing keeps a cut-off primary from taking in what a fail-over would lose.
    assert found["replicas"].mark == "warn"
    assert "CONFIG SET min-replicas-to-write 1" in found["replicas"].cure


async def test_a_user_with_few_rights_sees_less_and_no_error(pair: Pair, look) -> None:  # type: ignore[no-untyped-def]
    """Without CONFIG the settings are left out, without INFO the server: all else is looked at."""
    worker = await look(pair.primary.url_of("worker"))
    producer = await look(pair.primary.url_of("producer"))

    assert worker["persistence"].text == "append-only file on"
    assert "isn't looked at" in producer["redis"].text
    assert "eviction" not in producer
    assert producer["clock"].mark == "ok"


async def test_a_replica_is_no_place_to_work(pair: Pair, look) -> None:  # type: ignore[no-untyped-def]
    """The URL of a replica fails, and the finding names the primary."""
    found = await look(pair.replica.url_of("admin"))

    assert found["role"].mark == "FAIL"
    assert f"127.0.0.1:{pair.primary.port}" in found["role"].text


async def test_too_few_replicas_fail(pair: Pair, look) -> None:  # type: ignore[no-untyped-def]
    """Where min-replicas-to-write is more than there are, all writes are refused: the finding says so and the cure."""
    pair.primary.client.config_set("min-replicas-to-write", 2)
    found = await look(pair.primary.url_of("admin"))
    pair.primary.client.config_set("min-replicas-to-write", 0)

    assert found["replicas"].mark == "FAIL"
    assert "NOREPLICAS" in found["replicas"].text
    assert "1 of the 2" in found["replicas"].text


async def test_memory_that_fills_is_said_before_and_when_it_is_full(pair: Pair, look) -> None:  # type: ignore[no-untyped-def]
    """80 % is a warning, 95 % a failure, and no limit at all a warning: each with its cure."""
    client = pair.primary.client
    marks = {}
    for share in (0.5, 0.85, 1.0, 0):
        used = int(client.info("memory")["used_memory"])
        client.config_set("maxmemory", round(used / share) if share else 0)
        marks[share] = (await look(pair.primary.url_of("admin")))["memory"]
    client.config_set("maxmemory", "2gb")

    assert [finding.mark for finding in marks.values()] == ["ok", "warn", "FAIL", "warn"]
    assert "submits are refused" in marks[1.0].text
    assert "no maxmemory" in marks[0].text


async def test_a_dump_that_failed_is_said(pair: Pair, look) -> None:  # type: ignore[no-untyped-def]
    """A dump that can't be written makes Redis refuse all writes: a failure, until the disk is well again."""
    client, dump = pair.primary.client, pair.folder / "dump.rdb"
    dump.unlink(missing_ok=True)
    (dump / "in the way").mkdir(parents=True)
    await _save(client)
    await eventually(lambda: client.info("persistence")["rdb_last_bgsave_status"] == "err", 10)
    ill = await look(pair.primary.url_of("admin"))
    shutil.rmtree(dump)
    await _save(client)
    await eventually(lambda: client.info("persistence")["rdb_last_bgsave_status"] == "ok", 10)

    assert ill["dump"].mark == "FAIL"
    assert "MISCONF" in ill["dump"].text
    assert "dump" not in await look(pair.primary.url_of("admin"))


async def _save(client: Redis) -> None:
    """Begin a dump, as soon as none is being made for a replica."""
    await eventually(lambda: not client.info("persistence")["rdb_bgsave_in_progress"], 10)
    client.bgsave()


@pytest.mark.parametrize(
    ("changed", "about", "mark", "word"),
    [
        ({"aof_last_write_status": "err"}, "persistence", "FAIL", "MISCONF"),
        ({"aof_last_bgrewrite_status": "err"}, "persistence", "warn", "BGREWRITEAOF"),
        ({"aof_enabled": 0}, "persistence", "warn", "appendonly yes"),
        ({"redis_mode": "cluster"}, "cluster", "ok", "slot"),
        ({"loading": 1}, "role", "warn", "loading"),
    ],
)
async def test_what_a_server_says_seldom(
    pair: Pair, changed: dict[str, object], about: str, mark: str, word: str
) -> None:
    """What is hard to bring about is found in what the server would say then."""
    info = {**pair.primary.client.info("everything"), **changed}

    (found, *_) = [finding for finding in about_server.findings(info, {}, waitaof=False) if finding.about == about]

    assert found.mark == mark
    assert word in found.text + found.cure


def _knows_waitaof(client: Redis) -> bool:
    try:
        client.execute_command("WAITAOF", 0, 0, 1)  # type: ignore[no-untyped-call]
    except ResponseError:
        return False
    return True


async def test_a_sentinel_is_no_place_to_work(look, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """The address of a Sentinel, given as that of a server, fails with the form that is meant for it."""
    binary, port = server_binary("redis") or server_binary("valkey"), free_port()
    (tmp_path / "sentinel.conf").write_text(f"port {port}\nbind 127.0.0.1\nlogfile {tmp_path}/log\n")
    process = subprocess.Popen([str(binary), str(tmp_path / "sentinel.conf"), "--sentinel"], cwd=tmp_path)
    try:
        await eventually(lambda: _answers(port), 10)
        found = await look(f"redis://127.0.0.1:{port}/0")
    finally:
        process.terminate()
        process.wait(10)

    assert found["role"].mark == "FAIL"
    assert "redis+sentinel://" in found["role"].cure


def _answers(port: int) -> bool:
    with Redis(port=port, retry=Retry(NoBackoff(), 0)) as client:
        try:
            return bool(client.ping())
        except ConnectionError:
            return False
