"""Lost replies, servers that hang, forget or refuse, callers that leave: nothing charged twice, nothing free."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Iterator

import msgspec
import pytest

from tests.faults.proxy import Proxy
from tests.limiter.books import LIMITS, Books, Open
from tests.support import Server, eventually, running_server
from tokenweir import Limiter, LimitReached, StoreUnavailable
from tokenweir.connection import Connection, connect
from tokenweir.keys import Keys

pytestmark = pytest.mark.anyio


@pytest.fixture
def own_server(redis_server: Server) -> Iterator[Server]:
    """A server that the test may maltreat."""
    with running_server(redis_server.kind) as server:
        yield server


@pytest.fixture
async def owned(own_server: Server, keys: Keys) -> AsyncIterator[Connection]:
    """A connection to it."""
    opened = Connection(connect(own_server.url), keys)
    yield opened
    await opened.aclose()


async def test_c22_a_reply_lost_after_the_charge_charges_once(
    network: Proxy, opened: Open, books: Books, limiter: Limiter
) -> None:
    """The connection breaks when Redis has charged me: I am asked for again, granted, and charged once."""
    async with opened(network.url) as mine:
        for count in (1, 2, 3):
            network.lose_replies(count)
            async with mine.reserve(tokens=100, wait_s=5) as grant:
                grant.settle(tokens=100)

    assert (await books.used("tpm"), await books.used("rpm")) == (300, 3)


async def test_c22_a_give_back_whose_reply_is_lost_gives_back_once(
    network: Proxy, opened: Open, books: Books, limiter: Limiter
) -> None:
    """The answer to a give-back gets lost: it is told again, and what others were charged stays."""
    async with opened(network.url) as mine, mine.reserve(tokens=100), mine.reserve(tokens=100) as grant:
        network.lose_replies(2)
        grant.cancel()
    assert (await books.used("tpm"), await books.used("rpm")) == (100, 1)


async def test_c22_a_frozen_server_charges_nobody_who_left(own_server: Server, keys: Keys, owned: Connection) -> None:
    """Redis stands still while 50 callers ask: they are told in time, and what it charges later goes back."""
    books = Books(owned)
    async with Limiter(own_server.url, pool=keys.pool, limits={"primary": LIMITS}) as limiter:
        await books.warm()
        os.kill(own_server.pid, signal.SIGSTOP)
        began = time.monotonic()
        try:
            calls = [asyncio.create_task(limiter.reserve(tokens=7, wait_s=0).__aenter__()) for _ in range(50)]
            await asyncio.wait(calls)
        finally:
            os.kill(own_server.pid, signal.SIGCONT)
        assert 1 <= time.monotonic() - began < 3
        assert {type(call.exception()) for call in calls} == {StoreUnavailable}
    assert await books.used("tpm") == 0
    assert await books.count("granted") == 50


async def test_c23_without_redis_nothing_is_granted(
    network: Proxy, opened: Open, books: Books, limiter: Limiter
) -> None:
    """While Redis is away nobody goes; who has time waits, and goes when it is back. The rest is told so."""
    async with opened(network.url) as mine:
        network.cut()
        with pytest.raises(StoreUnavailable):
            await mine.reserve(tokens=10, wait_s=0).__aenter__()
        patient = asyncio.create_task(mine.reserve(tokens=10).__aenter__())
        with pytest.raises(StoreUnavailable):
            await mine.reserve(tokens=10, wait_s=1.2).__aenter__()
        assert not patient.done()
        network.mend()
        await asyncio.wait([patient], timeout=5)
        assert patient.done()

    assert await books.used("tpm") == 10


async def test_c23_a_script_that_may_not_run_grants_nothing(own_server: Server, keys: Keys, owned: Connection) -> None:
    """Redis answers, but refuses the script: that is no permission to call."""
    async with Limiter(own_server.url, pool=keys.pool, limits={"primary": LIMITS}) as limiter:
        await Books(owned).warm()
        await owned.command("ACL", "SETUSER", "default", "-@scripting")
        with pytest.raises(StoreUnavailable, match=r"(?i)noperm"):
            await limiter.reserve(tokens=10, wait_s=0).__aenter__()
        await owned.command("ACL", "SETUSER", "default", "+@scripting")
        async with limiter.reserve(tokens=10, wait_s=5):
            pass


async def test_c25_flushed_scripts_are_loaded_again(limiter: Limiter, connection: Connection, books: Books) -> None:
    """SCRIPT FLUSH ten times under load: no caller notices."""
    granted = 0

    async def call_often() -> None:
        nonlocal granted
        for _ in range(50):
            async with limiter.reserve(tokens=1) as grant:
                grant.settle(tokens=1)
                granted += 1

    async with asyncio.TaskGroup() as group:
        for _ in range(10):
            group.create_task(call_often())
        for count in range(10):
            await eventually(lambda least=count * 45: granted >= least)
            await connection.command("SCRIPT", "FLUSH")
    await limiter.aclose()

    assert granted == 500
    assert await books.used("tpm") == 500


async def test_an_emptied_redis_gets_its_limits_again(own_server: Server, keys: Keys, owned: Connection) -> None:
    """FLUSHALL in the middle: who brought limits puts them there again, and starts as cold as anybody."""
    limits = {"primary": {"rpm": 1000, "tpm": 10_000, "window_s": 2, "send_within_s": 0.1}}
    async with Limiter(own_server.url, pool=keys.pool, limits=limits) as limiter:
        async with limiter.reserve(tokens=10) as grant:
            await owned.command("FLUSHALL")
            with pytest.raises(LimitReached):
                await limiter.reserve(tokens=900, wait_s=0).__aenter__()
            grant.cancel()
        async with limiter.reserve(tokens=10, wait_s=5):
            pass
    assert await Books(owned).used("tpm") == 10


async def test_a_server_that_lost_the_last_charges_is_told_of_them(
    own_server: Server, keys: Keys, owned: Connection
) -> None:
    """A fail-over to a server that lacks a burst: the program tells of it before anybody gets another."""
    books = Books(owned)
    async with Limiter(own_server.url, pool=keys.pool, limits={"primary": LIMITS}) as limiter:
        await books.warm()
        await limiter.reserve(tokens=1, wait_s=5).__aenter__()
        before = await owned.command("GET", owned.keys.key("budget:primary"))
        for _ in range(3):
            await limiter.reserve(tokens=300_000, wait_s=5).__aenter__()
        kept = msgspec.msgpack.decode(before) | {"server": "f" * 40}
        await owned.command("SET", owned.keys.key("budget:primary"), msgspec.msgpack.encode(kept))
        memory = limiter._limits._memory
        assert memory
        memory.lives = [("f" * 40, born) for _, born in memory.lives]  # what it remembers is of the server that is gone

        with pytest.raises(LimitReached):
            await limiter.reserve(tokens=300_000, wait_s=0).__aenter__()

    assert await books.used("tpm") == 900_001


async def test_what_was_charged_before_redis_was_emptied_takes_nothing_from_others(
    own_server: Server, keys: Keys, owned: Connection
) -> None:
    """A give-back of a charge that Redis has forgotten changes nothing: what stands there is somebody else's."""
    books = Books(owned)
    async with Limiter(own_server.url, pool=keys.pool, limits={"primary": LIMITS}) as limiter:
        await books.warm()
        async with limiter.reserve(tokens=100) as grant:
            await owned.command("FLUSHALL")
            with pytest.raises(LimitReached):
                await limiter.reserve(tokens=900, wait_s=0).__aenter__()
            await books.warm(young=True)
            async with limiter.reserve(tokens=50, wait_s=5):
                grant.cancel()
    assert (await books.used("tpm"), await books.used("rpm")) == (50, 1)


async def test_an_emptied_redis_names_the_cure(own_server: Server, keys: Keys, owned: Connection) -> None:
    """FLUSHALL where workers own the limits: nothing is granted until one of them is back."""
    async with (
        Limiter(own_server.url, pool=keys.pool, limits={"primary": LIMITS}) as owner,
        Limiter(own_server.url, pool=keys.pool) as limiter,
    ):
        await owned.command("FLUSHALL")
        with pytest.raises(StoreUnavailable, match="a worker of it puts them there"):
            await limiter.reserve(tokens=10, wait_s=0).__aenter__()
        with pytest.raises(LimitReached):
            await owner.reserve(tokens=10, wait_s=0).__aenter__()
        await Books(owned).warm()
        async with limiter.reserve(tokens=10, wait_s=5):
            pass


async def test_a_grant_taken_too_late_is_exchanged(opened: Open, books: Books) -> None:
    """This process was busy when the grant came: a later call would count elsewhere, so it gets a new one."""
    async with opened(limits={"primary": LIMITS | {"send_within_s": 0.2}}) as limiter:
        await books.warm()
        call = asyncio.create_task(limiter.reserve(tokens=10).__aenter__())
        desk = limiter._desk
        assert desk
        while not desk._asked:  # noqa: ASYNC110 - `eventually` looks too seldom to see it
            await asyncio.sleep(0)
        time.sleep(0.3)  # noqa: ASYNC251 - the loop stands still, as under a long computation
        await call

    assert await books.count("granted") == 2
    assert (await books.used("tpm"), await books.used("rpm")) == (10, 1)


@pytest.mark.parametrize("steps", range(24))
async def test_cancelled_at_any_step_nothing_leaks(limiter: Limiter, books: Books, steps: int) -> None:
    """A caller is cancelled after so many turns of the loop: it was granted and stands, or it is charged nothing."""
    entered = 0

    async def call() -> None:
        nonlocal entered
        async with limiter.reserve(tokens=10):
            entered += 1
            await asyncio.Event().wait()

    task = asyncio.create_task(call())
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    await limiter.aclose()

    assert task.cancelled()
    assert (await books.used("tpm"), await books.used("rpm")) == (10 * entered, entered)


async def test_a_thousand_cancelled_at_random_leak_nothing(limiter: Limiter, books: Books) -> None:
    """1,000 callers, 700 of them cancelled at any time: what is charged is what was granted, no more and no less."""
    await books.warm(tpm=7 * 500)
    dice, granted, done = random.Random(7), set[int](), asyncio.Event()

    async def call(number: int) -> None:
        async with limiter.reserve(tokens=7):
            granted.add(number)
            await done.wait()

    loop = asyncio.get_running_loop()
    calls = [asyncio.create_task(call(number)) for number in range(1000)]
    leaving = set(dice.sample(range(1000), 700))
    for number in leaving:
        loop.call_later(dice.uniform(0, 0.03), calls[number].cancel)
    await asyncio.wait([calls[number] for number in leaving])
    await books.warm()
    await eventually(lambda: len(granted - leaving) == 300)
    done.set()
    await asyncio.wait(calls)
    await limiter.aclose()

    assert (await books.used("tpm"), await books.used("rpm")) == (7 * len(granted), len(granted))
