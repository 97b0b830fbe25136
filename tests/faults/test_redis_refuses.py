"""Redis is there and says no: writes, memory or connections are refused for a while. Nothing is lost or paid twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from redis.exceptions import OutOfMemoryError

from tests.faults.health import statuses
from tests.faults.strain import HOT, let_pass, no_hot_loop
from tests.integration.processes import wait_until
from tests.integration.rig import Rig, open_rig
from tokenweir import Client, QueueFull

pytestmark = pytest.mark.slow

WORKERS = 2
# Longer than a lease: who holds an answer would be taken for dead, if the others didn't know better.
LEASE_S, REFUSED_S = 4.0, 6.0
# With so short a lease abandoned entries are looked for ten times a second, in eight lanes; usually once in a second.
MOST_REFUSED = HOT + 10


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    """Two workers whose edge is warm."""
    with open_rig(lease_s=LEASE_S) as opened:
        opened.run(WORKERS)
        wait_until(lambda: opened.redis.exists(opened.keys.key("edge:alive")), 10)
        opened.wait_for(opened.add_many(20))
        yield opened


@pytest.fixture(autouse=True)
def _clean(rig: Rig) -> Iterator[None]:
    """Everything is served in the end, once, by the same workers."""
    pids = rig.runs[0].live
    yield
    rig.assert_clean(timeout_s=20)
    assert rig.runs[0].live == pids
    assert rig.ask("[after] still there?", timeout_s=5).status == "ok"
    assert rig.book().premium.rejected == 0
    assert "Traceback" not in rig.runs[0].text


@contextmanager
def _too_few_replicas(rig: Rig) -> Iterator[None]:
    rig.command("CONFIG", "SET", "min-replicas-to-write", "1")
    try:
        yield
    finally:
        rig.command("CONFIG", "SET", "min-replicas-to-write", "0")


@contextmanager
def _no_dump(rig: Rig) -> Iterator[None]:
    """The dump can't be written, so that Redis stops taking writes."""
    in_the_way = Path(rig.folder, "dump.rdb")
    in_the_way.mkdir()
    rig.command("CONFIG", "SET", "save", "3600 1")
    rig.command("BGSAVE")
    wait_until(lambda: rig.redis.info("persistence")["rdb_last_bgsave_status"] == "err", 10)
    try:
        yield
    finally:
        rig.command("CONFIG", "SET", "save", "")
        in_the_way.rmdir()


def _calls_under_way(rig: Rig, marker: str, *, seconds: float, count: int = 32) -> list[str]:
    """Requests whose calls have all begun, and last."""
    rig.order(kind=f"slow:{seconds}", match=marker, times=count)
    ids = [rig.add(f"{marker} {i}", complexity="complex") for i in range(count)]
    wait_until(lambda: rig.calls(marker) == count, 10)
    return ids


@pytest.mark.parametrize("refusing", [_too_few_replicas, _no_dump], ids=["NOREPLICAS", "MISCONF"])
def test_c63_refused_writes_are_made_up_for(
    rig: Rig, refusing: Callable[[Rig], AbstractContextManager[None]], request: pytest.FixtureRequest
) -> None:
    """Writes are refused while answers come in: they are held and written later, and no call is made again for them.

    Shortened from 20 s: what counts is that it is longer than a lease.
    """
    marker = f"[{request.node.callspec.id}]"
    ids = _calls_under_way(rig, marker, seconds=2)
    waiting = [rig.add(f"{marker} waits {i}", complexity="complex") for i in range(20)]

    with refusing(rig), no_hot_loop(rig, most=MOST_REFUSED):
        let_pass(REFUSED_S)
    results = rig.wait_for([*ids, *waiting])

    assert {(result.status, result.attempt) for result in results} == {("ok", 1)}
    assert rig.calls(marker) == len(results)


def test_a_full_redis_takes_nothing_in_and_is_emptied(rig: Rig) -> None:
    """At maxmemory producers are told what to do, all that was taken in is answered, and each call is paid once."""
    rig.order(kind="slow:1", match="[full]", times=200)
    ids = [rig.add(f"[full] {i}", complexity="complex", stream="1") for i in range(64)]
    wait_until(lambda: rig.calls("[full]") >= 32, 10)

    rig.command("CONFIG", "SET", "maxmemory", "1mb")
    try:
        with no_hot_loop(rig):
            with pytest.raises(OutOfMemoryError):
                rig.add("[full] too much")
            error = asyncio.run(_submit(rig))
            results = rig.wait_for(ids)
            wait_until(lambda: not rig.lengths(), 10)
    finally:
        rig.command("CONFIG", "SET", "maxmemory", "0")

    assert {(result.status, result.attempt) for result in results} == {("ok", 1)}
    assert rig.calls("[full]") == len(ids)
    assert "maxmemory" in str(error)
    assert error.retry_after_s >= 1


async def _submit(rig: Rig) -> QueueFull:
    async with Client(rig.store.url, pool=rig.keys.pool) as client:
        with pytest.raises(QueueFull) as caught:
            await client.submit("one more")
    return caught.value


def test_a_worker_starts_in_a_full_redis(rig: Rig) -> None:
    """At maxmemory more workers are what helps: one that starts then joins in."""
    ids = _calls_under_way(rig, "[more]", seconds=1)
    rig.command("CONFIG", "SET", "maxmemory", "1mb")
    try:
        other = rig.run(1)
        results = rig.wait_for(ids)
        wait_until(lambda: statuses(other, "readyz") == [200], 5, why=other.text)
        other.end()
    finally:
        rig.command("CONFIG", "SET", "maxmemory", "0")

    assert {result.status for result in results} == {"ok"}
